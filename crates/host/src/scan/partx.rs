//! Where the partitions of a device are, by its table. Called by the child that wipes a drive: the kernel has not read
//! the table of every device (a loop device, a plain file), and what it shows is not always what the table says.

use std::ops::Range;
use std::process::Command;
use std::time::Duration;

use hotbay_core::words::plain;

use super::blkid::{run, search_path};

/// The unit of its numbers, whatever the device's own block is.
const SECTOR: u64 = 512;

/// The bytes of each partition that the table of a device names; or, in words, why that is not known. Only for a device
/// that has a table.
pub(crate) fn partitions(path: &str, limit: Duration) -> Result<Vec<Range<u64>>, String> {
    let mut command = Command::new("partx");
    command.args(["--raw", "--noheadings", "--output", "START,SECTORS", path]);
    command.env("LC_ALL", "C").env("PATH", search_path());
    match run(command, limit) {
        Ok(Some(output)) if output.status.success() => parse(&output.stdout),
        Ok(Some(output)) => {
            let complaint = plain(String::from_utf8_lossy(&output.stderr).trim());
            let complaint: String = complaint.chars().take(200).collect();
            Err(format!("partx cannot read the partition table: {complaint}"))
        }
        Ok(None) => Err(format!("partx did not end within {} s", limit.as_secs())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err("partx is not installed: install util-linux".into())
        }
        Err(error) => Err(format!("partx cannot be run: {error}")),
    }
}

fn parse(text: &[u8]) -> Result<Vec<Range<u64>>, String> {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| part(line).ok_or_else(|| "partx gives no clear answer".to_owned())).collect()
}

fn part(line: &str) -> Option<Range<u64>> {
    let mut numbers = line.split_whitespace().map(str::parse::<u64>);
    let (start, sectors) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    let start = start.checked_mul(SECTOR)?;
    numbers.next().is_none().then_some(start..start.checked_add(sectors.checked_mul(SECTOR)?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_ranges_of_bytes_or_no_answer() {
        assert_eq!(parse(b"").unwrap(), []);
        assert_eq!(
            parse(b"2048 16\n4096 8\n").unwrap(),
            [1 << 20..(1 << 20) + 8192, 2 << 20..(2 << 20) + 4096]
        );
        for bad in ["2048", "2048 x", "2048 16 1", "18446744073709551615 1", "1 36028797018963968"]
        {
            assert!(parse(bad.as_bytes()).is_err(), "{bad}");
        }
    }
}
