# The first process of a node, in namespaces of its own: makes the folders private that a kubelet and what runs on it
# keep their things in, then waits. With it, everything in its namespaces ends. $1 is the node's folder.
set -e
# What a container mounts for others shall be seen by them, as on any node.
mount --make-rshared /
if [ -d /run/udev ]; then
    mkdir -p "$1/run/udev"
    mount --bind /run/udev "$1/run/udev"
fi
mount --rbind "$1/run" /run
mount --bind "$1/lib" /var/lib
mount --bind "$1/log" /var/log
for place in /run /var/lib /var/log; do
    # Else what is mounted there would be seen below $1 as well, as if it were mounted twice.
    mount --make-private "$place"
    mount --make-shared "$place"
done
trap 'exit 0' TERM
: >"$1/ready"
# Also takes note of those that end and have nobody else.
while :; do
    sleep 3600 &
    wait $!
done
