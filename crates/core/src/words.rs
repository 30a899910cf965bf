//! Words of a refusal that quote what came from outside: a message, a file, a program. They are shown in terminals and
//! logs, and whoever sent the bytes must not steer those.

/// The text with `?` for every control character.
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_that_steers_a_terminal() {
        let text = "a\u{1b}[2J\u{7f}\u{9b}b\r\nc\0 ä";
        assert_eq!(plain(text), "a?[2J??b??c? ä");
    }
}
