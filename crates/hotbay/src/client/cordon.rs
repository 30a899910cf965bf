//! `hotbay host cordon` and `uncordon`: whether new volumes are kept off the drives of hosts.

use hotbay_api::convert::action_to_wire;
use hotbay_core::cms::{Action, Code};

use super::answer::code;
use super::api::Api;
use super::error::ClientError;
use super::exit::Exit;
use super::screen::Screen;
use super::suggest;

pub(crate) async fn run(
    api: &Api,
    screen: &mut Screen,
    hosts: Vec<String>,
    cordoned: bool,
) -> Result<Exit, ClientError> {
    let asked =
        |host: &String| action_to_wire(&Action::CordonHost { host: host.clone(), cordoned });
    let results = api.act(hosts.iter().map(asked).collect(), false).await?;
    let (done, already, refused) = match cordoned {
        true => ("its drives get no new volumes from now on", "it is cordoned already", "cordoned"),
        false => ("its drives may get new volumes again", "it is not cordoned", "uncordoned"),
    };
    let mut exit = Exit::Done;
    for (host, result) in hosts.iter().zip(results) {
        match code(&result) {
            Some(Code::Ok) => screen.line(&format!("{host}: {done}"))?,
            Some(Code::Already) => {
                screen.line(&format!("{host}: {already}; nothing was changed"))?;
            }
            _ => exit = suggest::host_refused(api, screen, (host, refused), &result).await?,
        }
    }
    Ok(exit)
}
