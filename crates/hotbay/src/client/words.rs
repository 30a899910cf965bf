//! Small texts that tables and sentences share: sizes, times, and which drive is meant.

use std::collections::BTreeMap;
use std::time::Duration;

use hotbay_api::cms::DriveBrief;
use hotbay_core::device::Transport;

/// A size for a table: binary units, two or three digits.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];
    let mut unit = 0;
    // In tenths of the unit, so that rounding cannot make "10.0".
    let mut tenths = u128::from(bytes) * 10;
    while tenths >= 9_995 && unit + 1 < UNITS.len() {
        tenths = (tenths + 512) / 1_024;
        unit += 1;
    }
    if unit == 0 {
        format!("{bytes}B")
    } else if tenths < 100 {
        format!("{}.{}{}", tenths / 10, tenths % 10, UNITS[unit])
    } else {
        format!("{}{}", (tenths + 5) / 10, UNITS[unit])
    }
}

/// Labels as they are given on the command line, with commas.
pub(crate) fn labels(labels: &BTreeMap<String, String>) -> String {
    let labels: Vec<_> = labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    labels.join(",")
}

/// How a drive is reached; `-` if nobody knows.
pub(crate) fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Nvme => "nvme",
        Transport::Sata => "sata",
        Transport::Sas => "sas",
        Transport::Usb => "usb",
        Transport::Virtio => "virtio",
        Transport::Iscsi => "iscsi",
        Transport::Fc => "fc",
        Transport::Mmc => "mmc",
        Transport::File => "file",
        Transport::Unknown => "-",
    }
}

/// How long ago a time was, for a table; `-` for one that is not known. A clock that went back shows 0.
pub(crate) fn ago(then_ms: u64, now_ms: u64) -> String {
    if then_ms == 0 {
        return "-".to_owned();
    }
    let seconds = now_ms.saturating_sub(then_ms) / 1_000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// How long something took, in a sentence.
pub(crate) fn took(time: Duration) -> String {
    let seconds = time.as_secs();
    match seconds {
        0 if time.as_millis() < 100 => format!("{} ms", time.as_millis()),
        0..10 => format!("{seconds}.{} s", time.subsec_millis() / 100),
        10..60 => format!("{seconds} s"),
        60..3_600 => format!("{} min {} s", seconds / 60, seconds % 60),
        _ => format!("{} h {} min", seconds / 3_600, seconds / 60 % 60),
    }
}

/// A drive as people tell it from others: `d-7f3a (node-a bay 0, serial S3X1A9)`.
pub(crate) fn drive(brief: &DriveBrief) -> String {
    format!("{} ({} {})", brief.name, brief.node, place(brief))
}

/// The same below a line that names the host: `d-7f3a (bay 0, serial S3X1A9)`.
pub(crate) fn drive_of_host(brief: &DriveBrief) -> String {
    format!("{} ({})", brief.name, place(brief))
}

fn place(brief: &DriveBrief) -> String {
    let place = match brief.bay.as_str() {
        "" => brief.path.clone(),
        bay => format!("bay {bay}"),
    };
    match brief.serial.as_str() {
        "" => place,
        serial => format!("{place}, serial {serial}"),
    }
}

/// `1 drive`, `2 drives`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_short_and_binary() {
        assert_eq!(size(0), "0B");
        assert_eq!(size(512), "512B");
        assert_eq!(size(1 << 30), "1.0G");
        assert_eq!(size(480 << 30), "480G");
        assert_eq!(size(2_000_398_934_016), "1.8T");
        assert_eq!(size((8 << 40) + (5 << 30)), "8.0T");
        assert_eq!(size((1 << 30) - 1), "1.0G");
        assert_eq!(size(999 << 20), "999M");
        assert_eq!(size(1_023 << 20), "1.0G");
        assert_eq!(size(u64::MAX), "16E");
    }

    #[test]
    fn times_are_relative() {
        let now_ms = 1_700_000_000_000;
        assert_eq!(ago(0, now_ms), "-");
        assert_eq!(ago(now_ms + 5_000, now_ms), "0s");
        assert_eq!(ago(now_ms - 119_000, now_ms), "119s");
        assert_eq!(ago(now_ms - 121_000, now_ms), "2m");
        assert_eq!(ago(now_ms - 7_200_000, now_ms), "2h");
        assert_eq!(ago(now_ms - 3 * 86_400_000, now_ms), "3d");
    }

    #[test]
    fn the_shorter_a_wait_the_finer_its_unit() {
        assert_eq!(took(Duration::from_millis(43)), "43 ms");
        assert_eq!(took(Duration::from_millis(430)), "0.4 s");
        assert_eq!(took(Duration::from_millis(12_900)), "12 s");
        assert_eq!(took(Duration::from_secs(125)), "2 min 5 s");
        assert_eq!(took(Duration::from_secs(7_260)), "2 h 1 min");
    }

    #[test]
    fn a_drive_is_told_by_what_is_known_of_it() {
        let full = DriveBrief {
            order: String::new(),
            name: "d-7f3a".into(),
            node: "node-a".into(),
            path: "/dev/sda".into(),
            bay: "0".into(),
            serial: "S3X1A9".into(),
        };
        assert_eq!(drive(&full), "d-7f3a (node-a bay 0, serial S3X1A9)");
        assert_eq!(drive_of_host(&full), "d-7f3a (bay 0, serial S3X1A9)");
        let bare = DriveBrief { bay: String::new(), serial: String::new(), ..full };
        assert_eq!(drive(&bare), "d-7f3a (node-a /dev/sda)");
    }
}
