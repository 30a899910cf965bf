//! `hotbay get`: lists as a table, as the API's own objects, or as names; once, or again after every change.

use std::time::{SystemTime, UNIX_EPOCH};

use hotbay_api::kinds::{API_VERSION, Drive};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::signal::unix::{SignalKind, signal};

use super::api::{Api, FOLLOWED_BY_NAME, Kind};
use super::error::ClientError;
use super::exit::Exit;
use super::screen::{Screen, plain};
use super::table::{Table, Widths};
use super::{rows, suggest, volume};
use crate::cli::{Format, GetArgs, What};
use crate::plugin::as_called;

/// What to show, and how.
#[derive(Debug)]
struct Wanted {
    kind: Kind,
    names: Vec<String>,
    usable: bool,
    format: Option<Format>,
}

pub(crate) async fn run(
    api: &Api,
    screen: &mut Screen,
    args: GetArgs,
) -> Result<Exit, ClientError> {
    let GetArgs { what, output: format, watch } = args;
    let wanted = match what {
        What::Drives { names, usable } => Wanted { kind: Kind::Drive, names, usable, format },
        What::Nodes { names } => Wanted { kind: Kind::StorageNode, names, usable: false, format },
        What::Volumes { names } => Wanted { kind: Kind::Volume, names, usable: false, format },
    };
    if watch { wanted.watch(api, screen).await } else { wanted.once(api, screen).await }
}

impl Wanted {
    async fn once(&self, api: &Api, screen: &mut Screen) -> Result<Exit, ClientError> {
        let (objects, exit) = self.fetch(api, screen).await?;
        let objects = self.chosen(objects)?;
        if !objects.is_empty() || exit == Exit::Done {
            self.print(screen, &objects)?;
        }
        Ok(exit)
    }

    /// Everything, or what the names mean; a name that means nothing is complained about, and the others count.
    async fn fetch(
        &self,
        api: &Api,
        screen: &mut Screen,
    ) -> Result<(Vec<String>, Exit), ClientError> {
        if self.names.is_empty() {
            return Ok((api.list(self.kind, "").await?, Exit::Done));
        }
        let mut objects = Vec::new();
        let mut exit = Exit::Done;
        for name in &self.names {
            match api.list(self.kind, name).await {
                Ok(found) => objects.extend(found),
                Err(error @ ClientError::TurnedDown { .. }) => {
                    exit = exit.max(error.exit());
                    let next_steps = match error.exit() {
                        Exit::NotFound => suggest::next_steps(api, self.kind, name).await,
                        _ => Vec::new(),
                    };
                    screen.error(&error.to_string(), &next_steps)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok((objects, exit))
    }

    fn print(&self, screen: &mut Screen, objects: &[String]) -> Result<(), ClientError> {
        match self.format {
            None | Some(Format::Wide) => {
                if objects.is_empty() {
                    screen.aside(&format!("{}\n", as_called(self.nothing())));
                    return Ok(());
                }
                let table = self.table(objects)?;
                let widths = self.widths(screen, &table);
                let mut lines = vec![table.title_line(&widths)];
                lines.extend(table.row_lines(&widths, screen.has_colour()));
                screen.print(&(lines.join("\n") + "\n"))?;
            }
            Some(Format::Json) => {
                let value = self.object(objects)?;
                let text = serde_json::to_string_pretty(&value).map_err(ClientError::Answer)?;
                screen.line(&text)?;
            }
            Some(Format::Yaml) => screen.print(&yaml(&self.object(objects)?)?)?,
            Some(Format::Name) => {
                for object in objects {
                    screen.line(&name_of(&parsed(object)?))?;
                }
            }
        }
        Ok(())
    }

    /// One object if one was named, else a list.
    fn object(&self, objects: &[String]) -> Result<Value, ClientError> {
        let mut items: Vec<Value> =
            objects.iter().map(|object| parsed(object)).collect::<Result<_, _>>()?;
        if self.names.len() == 1 && items.len() == 1 {
            return Ok(items.remove(0));
        }
        let kind = format!("{}List", self.kind.name());
        Ok(json!({ "apiVersion": API_VERSION, "kind": kind, "items": items }))
    }

    fn table(&self, objects: &[String]) -> Result<Table, ClientError> {
        let wide = self.format == Some(Format::Wide);
        Ok(match self.kind {
            Kind::Drive => rows::drives(&parsed_all(objects)?, wide, now_ms()),
            Kind::StorageNode => rows::nodes(&parsed_all(objects)?, wide),
            Kind::Volume => volume::table::volumes(&parsed_all(objects)?, wide, now_ms()),
        })
    }

    /// Only a table on a terminal is made to fit; who asks for it wide gets all of it.
    fn widths(&self, screen: &Screen, table: &Table) -> Widths {
        match screen.size() {
            Some((columns, _)) if self.format.is_none() => table.fitted(columns),
            _ => table.natural(&Widths::new()),
        }
    }

    fn chosen(&self, mut objects: Vec<String>) -> Result<Vec<String>, ClientError> {
        if self.usable {
            let drives: Vec<Drive> = parsed_all(&objects)?;
            let mut usable = drives.iter().map(rows::usable);
            objects.retain(|_| usable.next().unwrap_or(false));
        }
        Ok(objects)
    }

    /// What to do when there is nothing to show.
    fn nothing(&self) -> &'static str {
        match self.kind {
            Kind::Drive if self.usable => {
                "No drive can be added. hotbay get drives says why, for each."
            }
            Kind::Drive => {
                "There are no drives: no agent has reported one yet. hotbay get nodes shows the agents."
            }
            Kind::StorageNode => {
                "There are no nodes: no agent has registered yet. hotbay up and hotbay demo start one."
            }
            Kind::Volume => {
                "There are no volumes. hotbay volume create NAME --size 10GiB makes one."
            }
        }
    }

    async fn watch(&self, api: &Api, screen: &mut Screen) -> Result<Exit, ClientError> {
        if self.names.len() > FOLLOWED_BY_NAME {
            let (given, limit) = (self.names.len(), FOLLOWED_BY_NAME);
            return Err(ClientError::TooManyNames { given, limit });
        }
        let (_, exit) = self.fetch(api, screen).await?;
        if exit != Exit::Done {
            return Ok(exit);
        }
        let repaint = screen.is_terminal() && matches!(self.format, None | Some(Format::Wide));
        let mut resized = signal(SignalKind::window_change()).map_err(ClientError::Start)?;
        let mut news = api.follow(self.kind, self.names.clone());
        let mut shown = Shown::default();
        let mut now = None;
        loop {
            tokio::select! {
                got = news.recv() => match got {
                    None => return Err(api.lost()),
                    Some(Ok(objects)) => now = Some(self.chosen(objects)?),
                    Some(Err(error)) if error.retryable() => {
                        screen.aside(&format!("{error}; trying again\n"));
                        continue;
                    }
                    Some(Err(error)) => return Err(error),
                },
                _ = resized.recv() => {}
            }
            let Some(objects) = &now else { continue };
            if repaint {
                self.repaint(screen, objects)?;
            } else {
                self.append(screen, objects, &mut shown)?;
            }
            if screen.hung_up() {
                return Ok(Exit::Done);
            }
        }
    }

    /// Paints over what was there, line by line, so that nothing flickers.
    fn repaint(&self, screen: &mut Screen, objects: &[String]) -> Result<(), ClientError> {
        let mut lines = if objects.is_empty() {
            vec![as_called(self.nothing())]
        } else {
            let table = self.table(objects)?;
            let widths = self.widths(screen, &table);
            let mut lines = vec![table.title_line(&widths)];
            lines.extend(table.row_lines(&widths, screen.has_colour()));
            lines
        };
        if let Some((_, rows)) = screen.size()
            && lines.len() >= rows
        {
            let hidden = lines.len() + 2 - rows;
            lines.truncate(rows.saturating_sub(2));
            lines.push(format!("and {hidden} more"));
        }
        let painted: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
        screen.print(&format!("\x1b[H{painted}\x1b[J"))?;
        Ok(())
    }

    /// Writes what has changed since the last time.
    fn append(
        &self,
        screen: &mut Screen,
        objects: &[String],
        shown: &mut Shown,
    ) -> Result<(), ClientError> {
        let is_new = |object: &&String| !shown.objects.contains(object);
        let changed: Vec<String> = objects.iter().filter(is_new).cloned().collect();
        objects.clone_into(&mut shown.objects);
        match self.format {
            None | Some(Format::Wide) => {
                let table = self.table(&changed)?;
                let widths = table.natural(&shown.widths);
                if shown.widths.is_empty() && !changed.is_empty() {
                    screen.line(&table.title_line(&widths))?;
                }
                for line in table.row_lines(&widths, false) {
                    screen.line(&line)?;
                }
                if !changed.is_empty() {
                    shown.widths = widths;
                }
            }
            Some(Format::Json) => {
                for object in &changed {
                    screen.line(&parsed::<Value>(object)?.to_string())?;
                }
            }
            Some(Format::Yaml) => {
                for object in &changed {
                    screen.print(&format!("---\n{}", yaml(&parsed(object)?)?))?;
                }
            }
            Some(Format::Name) => {
                for object in &changed {
                    screen.line(&name_of(&parsed(object)?))?;
                }
            }
        }
        Ok(())
    }
}

/// What a pipe has been sent.
#[derive(Debug, Default)]
struct Shown {
    objects: Vec<String>,
    widths: Widths,
}

fn parsed<T: DeserializeOwned>(object: &str) -> Result<T, ClientError> {
    serde_json::from_str(object).map_err(ClientError::Answer)
}

fn parsed_all<T: DeserializeOwned>(objects: &[String]) -> Result<Vec<T>, ClientError> {
    objects.iter().map(|object| parsed(object)).collect()
}

fn yaml(value: &Value) -> Result<String, ClientError> {
    serde_saphyr::to_string(value).map_err(ClientError::Yaml)
}

fn name_of(object: &Value) -> String {
    plain(object["metadata"]["name"].as_str().unwrap_or_default())
}

pub(crate) fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
