//! What stands behind the question mark of a request. A field that is not known is refused by its name, because what it
//! asks for would not be done.

use axum::http::Uri;

use super::refusal::Refusal;

/// The fields of a query; each route knows some of them.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// Goes on, with a line for every change.
    pub(super) watch: bool,
    /// The same, for events.
    pub(super) follow: bool,
    /// How many objects at the most.
    pub(super) limit: Option<u32>,
    /// Where the page before ended.
    pub(super) after: Option<String>,
}

/// Reads a query of which these fields are known: `watch`, `follow`, `limit`, `continue`.
pub(super) fn of(uri: &Uri, known: &[&str]) -> Result<Query, Refusal> {
    let mut query = Query::default();
    let fields = uri.query().unwrap_or_default().split('&').filter(|field| !field.is_empty());
    for field in fields {
        let (name, value) = field.split_once('=').unwrap_or((field, ""));
        let wrong = |expected: &str| {
            Refusal::argument(format!("the query {field:?} cannot be understood; {expected}"))
        };
        let flag = || match value {
            "true" => Ok(true),
            "false" => Ok(false),
            _ => Err(wrong(&format!("{name} is true or false"))),
        };
        match name {
            _ if !known.contains(&name) => {
                let words = format!("the query {field:?} is not known; there are: ");
                return Err(Refusal::argument(words + &known.join(", ")));
            }
            "watch" => query.watch = flag()?,
            "follow" => query.follow = flag()?,
            "limit" => {
                let limit = value.parse().ok().filter(|limit| *limit > 0);
                query.limit = Some(limit.ok_or_else(|| wrong("limit is a number above 0"))?);
            }
            "continue" => query.after = Some(value.to_owned()),
            _ => unreachable!("routes know the fields above"),
        }
    }
    Ok(query)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Query, Refusal> {
        of(&format!("/x?{text}").parse().unwrap(), &["watch", "limit", "continue"])
    }

    #[test]
    fn what_is_known_is_read_and_the_rest_refused_by_its_name() {
        let all = Query { limit: Some(3), after: Some("5b".into()), ..Query::default() };
        assert_eq!(read("limit=3&continue=5b&"), Ok(all));
        assert_eq!(read("watch=true"), Ok(Query { watch: true, ..Query::default() }));
        for bad in ["limit=0", "limit=-1", "limit", "watch=yes", "follow=true", "sort=size", "="] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
