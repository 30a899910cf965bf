//! One address that leads to any of several controllers, as a Service of Kubernetes does: to the next one that takes
//! connections.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const DIAL_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Service {
    pub(super) address: SocketAddr,
    behind: Arc<Mutex<Vec<SocketAddr>>>,
}

impl Service {
    pub(super) fn start() -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let behind: Arc<Mutex<Vec<SocketAddr>>> = Arc::default();
        let shared = Arc::clone(&behind);
        // Ends with this process.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut behind = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let next = behind.len().min(1);
                behind.rotate_left(next);
                let connect =
                    |address: &SocketAddr| TcpStream::connect_timeout(address, DIAL_LIMIT).ok();
                if let Some(server) = behind.iter().find_map(connect) {
                    pass(client, server).unwrap_or_default();
                }
            }
        });
        Ok(Self { address, behind })
    }

    /// From now on it leads to these.
    pub(super) fn lead_to(&self, addresses: Vec<SocketAddr>) {
        *self.behind.lock().unwrap_or_else(PoisonError::into_inner) = addresses;
    }
}

fn pass(client: TcpStream, server: TcpStream) -> io::Result<()> {
    for stream in [&client, &server] {
        stream.set_nodelay(true)?;
    }
    let directions = [(client.try_clone()?, server.try_clone()?), (server, client)];
    for (mut from, mut to) in directions {
        std::thread::spawn(move || {
            io::copy(&mut from, &mut to).unwrap_or_default();
            to.shutdown(Shutdown::Both).unwrap_or_default();
            from.shutdown(Shutdown::Both).unwrap_or_default();
        });
    }
    Ok(())
}
