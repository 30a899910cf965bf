//! "Did you mean": the names nearest to one that does not exist.

/// Most suggestions in one sentence.
const SUGGESTIONS: usize = 3;
/// Longer texts are no typing mistakes of names, and comparing them takes long.
const LONGEST: usize = 128;

/// The known names that take the fewest changes from `typed`, if few enough to be a typing mistake.
pub(crate) fn nearest<'a>(typed: &str, known: impl IntoIterator<Item = &'a str>) -> Vec<&'a str> {
    let length = typed.chars().count();
    if length > LONGEST {
        return Vec::new();
    }
    let limit = (length / 3).max(1);
    let mut best = limit + 1;
    let mut found: Vec<&str> = Vec::new();
    for name in known {
        if name.chars().count().abs_diff(length) > best || found.contains(&name) {
            continue;
        }
        let distance = distance(typed, name);
        if distance < best {
            best = distance;
            found.clear();
        }
        if distance == best && best <= limit {
            found.push(name);
        }
    }
    found.truncate(SUGGESTIONS);
    found
}

/// The suggestion as a sentence.
pub(crate) fn did_you_mean(names: &[&str]) -> Option<String> {
    let (last, others) = names.split_last()?;
    Some(match others {
        [] => format!("did you mean {last}?"),
        others => format!("did you mean {} or {last}?", others.join(", ")),
    })
}

/// How many letters to add, drop, replace or swap with a neighbour to make one text of the other.
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    // Three rows of the usual table: two back for swaps, one back, and the one being filled.
    let mut two_back = vec![0; b.len() + 1];
    let mut one_back: Vec<usize> = (0..=b.len()).collect();
    for i in 1..=a.len() {
        let mut row = vec![i; b.len() + 1];
        for j in 1..=b.len() {
            let replaced = one_back[j - 1] + usize::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(one_back[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(two_back[j - 2] + 1);
            }
        }
        two_back = std::mem::replace(&mut one_back, row);
    }
    one_back[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances_count_single_mistakes() {
        for (a, b, expected) in [
            ("", "", 0),
            ("", "abc", 3),
            ("node-a", "node-a", 0),
            ("nod-a", "node-a", 1),
            ("noed-a", "node-a", 1),
            ("d-7f3b", "d-7f3a", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(distance(a, b), expected, "{a} {b}");
            assert_eq!(distance(b, a), expected, "{b} {a}");
        }
    }

    #[test]
    fn only_likely_mistakes_are_suggested() {
        let known = ["node-a", "node-b", "storage-7"];
        assert_eq!(nearest("nod-a", known), ["node-a"]);
        assert_eq!(nearest("node-c", known), ["node-a", "node-b"]);
        assert_eq!(nearest("storage7", known), ["storage-7"]);
        assert!(nearest("quite-other", known).is_empty());
        assert!(nearest("x", ["node-a"]).is_empty());
        assert!(nearest(&"a".repeat(4_096), [&*"a".repeat(4_095)]).is_empty());
    }

    #[test]
    fn suggestions_read_as_a_sentence() {
        assert_eq!(did_you_mean(&[]), None);
        assert_eq!(did_you_mean(&["node-a"]).unwrap(), "did you mean node-a?");
        assert_eq!(did_you_mean(&["a", "b", "c"]).unwrap(), "did you mean a, b or c?");
    }
}
