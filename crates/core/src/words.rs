//! Words for people. Some quote what came from outside: a message, a file, a program. They are shown in terminals and
//! logs, and whoever sent the bytes must not steer those.

/// The text with `?` for every control character.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// A size, such as `1.5 GiB`. What is not a whole number of tenths is rounded down.
pub fn bytes(size: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (1..=UNITS.len()).rev().find(|power| size >> (10 * power) > 0);
    let Some(power) = unit else { return format!("{size} B") };
    let whole = size >> (10 * power);
    let rest = u128::from(size) - (u128::from(whole) << (10 * power));
    match (rest * 10) >> (10 * power) {
        0 => format!("{whole} {}", UNITS[power - 1]),
        tenths => format!("{whole}.{tenths} {}", UNITS[power - 1]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_told_in_the_largest_unit_that_fits() {
        let told = [0, 1023, 1024, 1536, (1 << 30) - 1, 1 << 30, 3 << 39, u64::MAX].map(bytes);
        let expected =
            ["0 B", "1023 B", "1 KiB", "1.5 KiB", "1023.9 MiB", "1 GiB", "1.5 TiB", "15.9 EiB"];
        assert_eq!(told, expected);
    }

    #[test]
    fn nothing_is_left_that_steers_a_terminal() {
        let text = "a\u{1b}[2J\u{7f}\u{9b}b\r\nc\0 ä";
        assert_eq!(plain(text), "a?[2J??b??c? ä");
    }
}
