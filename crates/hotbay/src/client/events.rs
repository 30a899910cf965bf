//! `hotbay events`: what happened, a sentence each.

use hotbay_api::cms::Event;

use super::api::Api;
use super::error::ClientError;
use super::exit::Exit;
use super::get::now_ms;
use super::screen::Screen;
use super::words;

pub(crate) async fn run(api: &Api, screen: &mut Screen, follow: bool) -> Result<Exit, ClientError> {
    let mut events = api.events(follow).await?;
    let mut none = true;
    while let Some(event) = api.next_event(&mut events).await? {
        none = false;
        screen.line(&line(&event))?;
        if screen.hung_up() {
            break;
        }
    }
    if none {
        screen.aside("Nothing has happened since the registry started.\n");
    }
    Ok(Exit::Done)
}

/// One event for people: how long ago, and the sentence.
pub(crate) fn line(event: &Event) -> String {
    let ago = words::ago(event.time_ms, now_ms());
    let warning = if event.warning { "warning: " } else { "" };
    format!("{ago:>4} ago  {warning}{}", event.text)
}
