//! One address that leads to any of several, as a Service of Kubernetes does: to the next one that takes connections.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    behind: Arc<Mutex<Behind>>,
}

/// Who is behind it, by number, and who was last asked.
#[derive(Default)]
struct Behind {
    places: BTreeMap<usize, SocketAddr>,
    last: usize,
}

impl Behind {
    /// The next one that takes a connection.
    fn connect(&mut self) -> Option<TcpStream> {
        let (before, after): (Vec<_>, Vec<_>) =
            self.places.iter().partition(|(number, _)| **number <= self.last);
        let places: Vec<_> = after.into_iter().chain(before).collect();
        places.into_iter().find_map(|(number, address)| {
            let stream = TcpStream::connect_timeout(address, Duration::from_secs(1)).ok()?;
            self.last = *number;
            Some(stream)
        })
    }
}

impl Service {
    pub(crate) fn start(on: IpAddr) -> Self {
        let listener = TcpListener::bind((on, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let behind: Arc<Mutex<Behind>> = Arc::default();
        let shared = Arc::clone(&behind);
        // Ends with the process of the test.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                if let Some(server) = shared.lock().unwrap().connect() {
                    pass(client, server);
                }
            }
        });
        Self { address, behind }
    }

    /// From now on this one is at that address.
    pub(crate) fn serve_with(&self, number: usize, address: SocketAddr) {
        self.behind.lock().unwrap().places.insert(number, address);
    }
}

fn pass(client: TcpStream, server: TcpStream) {
    let directions = [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)];
    for (mut from, mut to) in directions {
        std::thread::spawn(move || {
            io::copy(&mut from, &mut to).unwrap_or_default();
            to.shutdown(Shutdown::Both).unwrap_or_default();
            from.shutdown(Shutdown::Both).unwrap_or_default();
        });
    }
}
