//! Sizes as people write them in rules and selectors. A drive is sold in powers of ten, and everything else is told in
//! powers of two: both have their unit.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

/// A number of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Size(pub u64);

/// Why a text is no size.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{text:?} is no size; write it like 960GB or 1TB (powers of ten), or 1TiB (powers of two)")]
pub struct NotASize {
    text: String,
}

impl FromStr for Size {
    type Err = NotASize;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text).ok_or_else(|| NotASize { text: text.to_owned() })
    }
}

/// A number, with at most three digits behind its point, and a unit.
fn parse(text: &str) -> Option<Size> {
    let text = text.trim();
    let number_ends = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(number_ends);
    let (whole, part) = number.split_once('.').map_or((number, None), |(a, b)| (a, Some(b)));
    let unit_bytes: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        "pb" => 1_000_000_000_000_000,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        "t" | "tib" => 1 << 40,
        "p" | "pib" => 1 << 50,
        _ => return None,
    };
    let mut bytes = u128::from(whole.parse::<u64>().ok()?) * u128::from(unit_bytes);
    if let Some(part) = part {
        let digits = u32::try_from(part.len()).ok().filter(|digits| (1..=3).contains(digits))?;
        bytes +=
            u128::from(part.parse::<u64>().ok()?) * u128::from(unit_bytes) / 10_u128.pow(digits);
    }
    u64::try_from(bytes).ok().map(Size)
}

impl fmt::Display for Size {
    /// In the largest unit that it is a whole number of.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units: [(u64, &str); 8] = [
            (1 << 40, "TiB"),
            (1_000_000_000_000, "TB"),
            (1 << 30, "GiB"),
            (1_000_000_000, "GB"),
            (1 << 20, "MiB"),
            (1_000_000, "MB"),
            (1 << 10, "KiB"),
            (1_000, "KB"),
        ];
        let whole = |unit: &&(u64, &str)| self.0 != 0 && self.0.is_multiple_of(unit.0);
        match units.iter().find(whole) {
            Some((bytes, name)) => write!(f, "{}{name}", self.0 / bytes),
            None => write!(f, "{}B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_decimal_or_binary_as_their_unit_says() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4_096),
            ("1TB", 1_000_000_000_000),
            ("1 TiB", 1 << 40),
            ("1.92TB", 1_920_000_000_000),
            ("0.5g", 1 << 29),
            ("960gb", 960_000_000_000),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
        for bad in [
            "",
            "TB",
            "-1",
            "1.TB",
            "1.2345TB",
            "1..2T",
            "1XB",
            "1T B",
            "18446744073709551616",
            "99999PB",
        ] {
            assert!(bad.parse::<Size>().is_err(), "{bad:?} was taken");
        }
    }

    #[test]
    fn a_size_is_written_as_it_can_be_read() {
        for text in ["1TB", "1TiB", "960GB", "512MiB", "1537B", "0B", "3KB"] {
            assert_eq!(text.parse::<Size>().unwrap().to_string(), text);
        }
    }
}
