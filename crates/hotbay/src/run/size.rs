//! Sizes as people type them and as the demo prints them.

/// Reads a size such as `1GiB`, `256M` or `4096`. Units are binary.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a size; write it like 1GiB or 256MiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let shift = match &text[digits..] {
        "" | "B" => 0,
        "K" | "KiB" => 10,
        "M" | "MiB" => 20,
        "G" | "GiB" => 30,
        "T" | "TiB" => 40,
        _ => return Err(wrong()),
    };
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

/// A size in the largest unit that it is a whole number of.
pub(crate) fn exact(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    let whole = |(shift, _): &(u32, &str)| bytes != 0 && bytes.trailing_zeros() >= *shift;
    match units.into_iter().find(|unit| whole(unit)) {
        Some((shift, unit)) => format!("{} {unit}", bytes >> shift),
        None => format!("{bytes} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary_and_exact() {
        assert_eq!(parse("1GiB"), Ok(1 << 30));
        assert_eq!(parse("256M"), Ok(256 << 20));
        assert_eq!(parse("4096"), Ok(4096));
        for bad in ["", "GiB", "1.5G", "-1", "1GB", "99999999999T", "1 GiB"] {
            assert!(parse(bad).is_err(), "{bad:?} was taken");
        }
        assert_eq!(exact(1 << 30), "1 GiB");
        assert_eq!(exact(1537), "1537 bytes");
    }
}
