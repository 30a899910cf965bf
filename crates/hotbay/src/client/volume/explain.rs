//! `hotbay volume explain`: where a volume would go, and why not elsewhere.

use hotbay_api::PROTOCOL;
use hotbay_api::volumes::{ExplainRequest, ExplainResponse, Judged};
use hotbay_core::words::bytes;
use serde::Serialize;

use super::{turned_down, unknown_node, wished};
use crate::cli::{ExplainFormat, WishArgs};
use crate::client::api::Api;
use crate::client::error::ClientError;
use crate::client::exit::Exit;
use crate::client::screen::{Screen, plain};

/// What was found. Its JSON is an interface: fields are added, never renamed.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Explained {
    /// There is a drive that takes it: the first one.
    fits: bool,
    drives: Vec<Considered>,
}

/// What is said of one drive.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Considered {
    name: String,
    node: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    bay: String,
    path: String,
    media: String,
    free_bytes: u64,
    /// Why not; empty: it fits.
    unfit: Vec<String>,
}

impl From<Judged> for Considered {
    fn from(judged: Judged) -> Self {
        let Judged { name, node, bay, path, media, free_bytes, unfit } = judged;
        let [name, node, bay, path, media] = [name, node, bay, path, media].map(|it| plain(&it));
        let unfit = unfit.iter().map(|why| plain(why)).collect();
        Self { name, node, bay, path, media, free_bytes, unfit }
    }
}

impl Considered {
    /// Such as `node-a bay 1`.
    fn place(&self) -> String {
        match self.bay.as_str() {
            "" => self.node.clone(),
            bay => format!("{} bay {bay}", self.node),
        }
    }
}

pub(super) async fn run(
    api: &Api,
    screen: &mut Screen,
    wish: &WishArgs,
    output: Option<ExplainFormat>,
) -> Result<Exit, ClientError> {
    let request = ExplainRequest { protocol: PROTOCOL, wish: Some(wished(wish)?) };
    let explained = match api.volumes(async move |mut client| client.explain(request).await).await {
        Ok(ExplainResponse { drives, fits, .. }) => {
            Explained { fits, drives: drives.into_iter().map(Into::into).collect() }
        }
        Err(error) => {
            let next = match error.exit() {
                Exit::NotFound => unknown_node(api, wish).await,
                _ => Vec::new(),
            };
            return turned_down(screen, "it cannot be said where it would go", error, next);
        }
    };
    match output {
        None => {
            for line in lines(&explained) {
                screen.line(&line)?;
            }
        }
        Some(ExplainFormat::Json) => {
            let text = serde_json::to_string_pretty(&explained).map_err(ClientError::Answer)?;
            screen.line(&text)?;
        }
        Some(ExplainFormat::Yaml) => {
            screen.print(&serde_saphyr::to_string(&explained).map_err(ClientError::Yaml)?)?;
        }
    }
    Ok(Exit::Done)
}

fn lines(explained: &Explained) -> Vec<String> {
    let Explained { fits, drives } = explained;
    let fitting = drives.iter().filter(|drive| drive.unfit.is_empty()).count();
    let (first, others) = match drives.split_first() {
        Some((chosen, others)) if *fits => {
            let free = bytes(chosen.free_bytes);
            let least = match fitting {
                // A group that spreads where it can goes beside its own rather than nowhere.
                0 | 1 => "the only one that fits".to_owned(),
                fitting => format!("least filled of {fitting}"),
            };
            let place = chosen.place();
            (format!("would go to  {} ({place}): {free} free, {least}", chosen.name), others)
        }
        Some(_) => ("would go nowhere: no drive fits".to_owned(), drives.as_slice()),
        None => {
            let next = "see which drives there are:  hotbay get drives";
            return vec![format!("would go nowhere: there are no drives\n  {next}")];
        }
    };
    let name = others.iter().map(|drive| drive.name.chars().count()).max().unwrap_or(0);
    let place = others.iter().map(|drive| drive.place().chars().count()).max().unwrap_or(0);
    let other = |drive: &Considered| {
        let verdict = match drive.unfit.as_slice() {
            [] => format!("fits as well: {} free", bytes(drive.free_bytes)),
            why => format!("no: {}", why.join("; ")),
        };
        format!("  {:<name$}  {:<place$}  {verdict}", drive.name, drive.place())
    };
    std::iter::once(first).chain(others.iter().map(other)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(name: &str, bay: &str, free_gib: u64, unfit: &[&str]) -> Considered {
        Considered {
            name: name.into(),
            node: "node-a".into(),
            bay: bay.into(),
            path: "/dev/sda".into(),
            media: "NVMe".into(),
            free_bytes: free_gib << 30,
            unfit: unfit.iter().map(|why| (*why).to_owned()).collect(),
        }
    }

    #[test]
    fn the_drive_is_told_and_of_every_other_why_not() {
        let group = "volume db-0 of the same group is on it (spread required)";
        let explained = Explained {
            fits: true,
            drives: vec![
                drive("d-91c0", "1", 1_127, &[]),
                drive("d-1234", "2", 10, &[]),
                drive("d-7f3a", "0", 9, &[group]),
                drive("d-02bd", "", 0, &["not in operation (system drive)", "HDD, NVMe asked for"]),
            ],
        };
        assert_eq!(
            lines(&explained),
            [
                "would go to  d-91c0 (node-a bay 1): 1.1 TiB free, least filled of 2".to_owned(),
                "  d-1234  node-a bay 2  fits as well: 10 GiB free".to_owned(),
                format!("  d-7f3a  node-a bay 0  no: {group}"),
                "  d-02bd  node-a        no: not in operation (system drive); HDD, NVMe asked for"
                    .to_owned(),
            ]
        );
    }

    #[test]
    fn nowhere_is_said_too() {
        let none = Explained { fits: false, drives: vec![drive("d-1", "0", 1, &["no room"])] };
        assert_eq!(
            lines(&none),
            ["would go nowhere: no drive fits", "  d-1  node-a bay 0  no: no room"]
        );
        let empty = Explained { fits: false, drives: Vec::new() };
        assert!(lines(&empty)[0].contains("there are no drives"));
    }
}
