//! What an agent says becomes records, and a decision that no store can keep would end the registry: such things are
//! refused at the door, where only the session of that one agent ends. `agent` calls it.

use super::Malformed;

/// The highest number that every store keeps: the API server of Kubernetes takes signed ones.
const HIGHEST: u64 = i64::MAX.cast_unsigned();
/// The longest that is told of one device. Agents name at most some dozens of mounts, links and partitions of each.
const DEVICE_BYTES: usize = 256 << 10;
/// The most devices of one machine; an agent follows no more of them.
const DEVICES: usize = 16_384;

/// A number that is stored.
pub(super) fn within_bounds(field: &'static str, number: u64) -> Result<u64, Malformed> {
    if number <= HIGHEST {
        return Ok(number);
    }
    Err(Malformed::field(field, format!("{number} is higher than {HIGHEST}")))
}

/// Devices, as JSON each.
pub(super) fn observed_fits(field: &'static str, texts: &[String]) -> Result<(), Malformed> {
    if texts.len() > DEVICES {
        let problem = format!("there are {} devices, and {DEVICES} are allowed", texts.len());
        return Err(Malformed::field(field, problem));
    }
    for text in texts {
        if text.len() > DEVICE_BYTES {
            let problem = format!("a device has {} bytes of {DEVICE_BYTES}", text.len());
            return Err(Malformed::field(field, problem));
        }
    }
    Ok(())
}

/// A JSON text, whatever it is about: a label that is made up may become the record of a volume one day.
pub(super) fn numbers_fit(field: &'static str, text: &str) -> Result<(), Malformed> {
    match too_high(text) {
        Some(number) => Err(Malformed::field(field, format!("{number} is higher than {HIGHEST}"))),
        None => Ok(()),
    }
}

/// The first number in a JSON text that is higher than any that is stored. Looks at bytes alone, because a thousand
/// machines may register at once; what is no JSON is found by whoever reads it.
fn too_high(text: &str) -> Option<&str> {
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = after_string(bytes, at + 1),
            b'0'..=b'9' => {
                let digits = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                let number = &text[at..at + digits];
                if number.parse::<u64>().map_or(true, |number| number > HIGHEST) {
                    return Some(number);
                }
                at += digits;
            }
            _ => at += 1,
        }
    }
    None
}

/// Behind the quotation mark that ends a string.
fn after_string(bytes: &[u8], mut at: usize) -> usize {
    while at < bytes.len() {
        match bytes[at] {
            b'"' => return at + 1,
            b'\\' => at += 2,
            _ => at += 1,
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_every_store_are_found_and_texts_are_left_alone() {
        for (text, found) in [
            (r#"{"sizeBytes":9223372036854775807}"#, None),
            (r#"{"sizeBytes":9223372036854775808}"#, Some("9223372036854775808")),
            (r#"{"a":[{"b":18446744073709551616}]}"#, Some("18446744073709551616")),
            (r#"{"serial":"99999999999999999999"}"#, None),
            (r#"{"serial":"a\"99999999999999999999","n":1}"#, None),
            (r#"{"serial":"a\\","n":99999999999999999999}"#, Some("99999999999999999999")),
            (r#"{"open":"99999999999999999999"#, None),
            ("\"\\", None),
            ("", None),
        ] {
            assert_eq!(too_high(text), found, "{text}");
        }
    }

    #[test]
    fn what_is_too_much_is_refused_in_words() {
        let fits = |texts: &[String]| observed_fits("observed_json", texts);
        assert!(fits(&vec!["{}".to_owned(); DEVICES]).is_ok());
        for (texts, word) in [
            (vec!["{}".to_owned(); DEVICES + 1], "16385 devices"),
            (vec![" ".repeat(DEVICE_BYTES + 1)], "262145 bytes"),
        ] {
            let said = fits(&texts).unwrap_err().to_string();
            assert!(said.contains(word) && said.contains("observed_json"), "{said}");
        }
        let said = numbers_fit("label_json", r#"{"length":9223372036854775808}"#).unwrap_err();
        assert!(said.to_string().contains("higher than"), "{said}");
        assert_eq!(within_bounds("n", HIGHEST).unwrap(), HIGHEST);
        assert!(within_bounds("n", HIGHEST + 1).is_err());
    }
}
