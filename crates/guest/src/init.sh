#!/bin/busybox sh
# The guest's first process, and its only one until a test asks for more: mounts what a system has, loads the modules,
# and then runs the commands that come over the serial port. See commands.rs for the conversation.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
/bin/busybox --install -s /bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
mount -t tmpfs tmpfs /run
mkdir -p /dev/shm /root
hostname guest
# The console is kept by whoever booted us: warnings of the kernel belong there as well.
echo 5 >/proc/sys/kernel/printk
for module in $(cat /etc/modules); do
    modprobe "$module" || echo "init: no module $module"
done

# device_of CLASS FILE TEXT: waits for the device whose FILE in sysfs says TEXT, and prints its name.
device_of() {
    tries=0
    while [ "$tries" -lt 300 ]; do
        for file in /sys/class/"$1"/*/"$2"; do
            if [ "$(cat "$file" 2>/dev/null)" = "$3" ]; then
                basename "${file%/"$2"}"
                return
            fi
        done
        tries=$((tries + 1))
        usleep 100000
    done
    echo "init: nothing in /sys/class/$1 has $3 as its $2" >/dev/console
}

# What must survive a reboot is on a drive of its own.
mount -t ext4 "/dev/$(device_of block serial guest-state)" /var/lib
exec 3<>"/dev/$(device_of virtio-ports name commands)"
echo ready >&3
while read -r number length <&3; do
    head -c "$length" <&3 >/run/command
    # Without the port: what a command leaves running must not keep it.
    sh /run/command >/run/stdout 2>/run/stderr </dev/null 3<&-
    echo "$number $? $(stat -c %s /run/stdout) $(stat -c %s /run/stderr)" >&3
    cat /run/stdout /run/stderr >&3
done
poweroff -f
