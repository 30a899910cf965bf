//! The socket: bound so that only its owner can ever connect, and never under the feet of a process that is served
//! there. The program binds it and says what is served on it; the registry's other sockets are bound in the same way.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::controller::Controller;
use crate::identity::Identity;
use crate::node::Node;
use crate::platform::{ControllerPlatform, NodePlatform};

/// How many connections wait to be taken.
const BACKLOG: i32 = 1024;
/// How many calls one connection may have under way: the sidecars use one connection each.
const CALLS_OF_A_CONNECTION: u32 = 1024;
/// The pause after a connection that could not be taken, because no descriptor was left for it.
const PAUSE: Duration = Duration::from_millis(100);
/// How often, and how far apart, the folder is tried while another process binds a socket in it.
const TRIES: u32 = 50;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// The kernel's room for the path of a socket, with a NUL byte at its end.
const SOCKET_PATH_BYTES: usize = 108;

/// Why there is no socket.
#[derive(Debug, Error)]
pub enum BindError {
    #[error("the folder {} cannot be used for a socket: make it first", dir.display())]
    Folder {
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(
        "others may write to the folder {}, and could put a socket of theirs in the place of ours: chmod go-w, or \
         choose another folder", dir.display()
    )]
    OpenFolder { dir: PathBuf },
    #[error("another process is binding a socket in {}: try again", dir.display())]
    FolderBusy { dir: PathBuf },
    #[error(
        "{} is too long for the path of a socket: choose one below {SOCKET_PATH_BYTES} bytes", path.display()
    )]
    TooLong { path: PathBuf },
    #[error("{} is not a socket: remove it, or choose another path", path.display())]
    NotASocket { path: PathBuf },
    #[error(
        "{} is in use by process {pid}: stop it, or choose another path", path.display()
    )]
    InUse { path: PathBuf, pid: i32 },
    #[error("cannot tell whether {} is in use", path.display())]
    Unclear {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot listen on {}", path.display())]
    Listen {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl BindError {
    /// The disk of the path is full or read-only: the path is good, and may be tried again later.
    pub fn is_of_the_disk(&self) -> bool {
        match self {
            Self::Folder { source, .. }
            | Self::Unclear { source, .. }
            | Self::Listen { source, .. } => matches!(
                source.kind(),
                io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::StorageFull
            ),
            Self::OpenFolder { .. }
            | Self::FolderBusy { .. }
            | Self::TooLong { .. }
            | Self::NotASocket { .. }
            | Self::InUse { .. } => false,
        }
    }
}

/// A socket that is listened on. The file goes with it, if it is still ours.
#[derive(Debug)]
pub struct Socket {
    listener: StdListener,
    path: PathBuf,
    inode: (u64, u64),
}

impl Socket {
    /// Listens on `path`, with mode 0600 from the start. A socket that nobody listens on is replaced; one that is in
    /// use, and anything else, is left alone. May wait up to a second for another start in the same folder.
    pub fn bind(path: &Path) -> Result<Self, BindError> {
        if path.as_os_str().len() >= SOCKET_PATH_BYTES {
            return Err(BindError::TooLong { path: path.to_owned() });
        }
        let dir = match path.parent() {
            Some(dir) if dir != Path::new("") => dir,
            Some(_) | None => Path::new("."),
        };
        // Held until the end of this function: two starts must not both take the same socket for a stale one.
        let _folder = lock_folder(dir)?;
        remove_stale(path)?;
        let failed = |source: io::Error| BindError::Listen { path: path.to_owned(), source };
        let listener = listen(path).map_err(|error| failed(error.into()))?;
        let inode = inode(path).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned(), inode })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What takes the connections. The file stays for as long as this value does.
    pub fn listener(&self) -> Result<UnixListener, ServeError> {
        let listener = self.listener.try_clone().and_then(UnixListener::from_std);
        listener.map_err(|source| ServeError::Listener { path: self.path.clone(), source })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if inode(&self.path).is_ok_and(|inode| inode == self.inode) {
            // One that stays is stale, and the next start knows it for that.
            drop(fs::remove_file(&self.path));
        }
    }
}

fn inode(path: &Path) -> io::Result<(u64, u64)> {
    let found = fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

fn lock_folder(dir: &Path) -> Result<fs::File, BindError> {
    let failed = |source| BindError::Folder { dir: dir.to_owned(), source };
    let folder = fs::File::open(dir).map_err(failed)?;
    let found = folder.metadata().map_err(failed)?;
    if !found.is_dir() {
        return Err(failed(io::ErrorKind::NotADirectory.into()));
    }
    // In a folder like /tmp, with the sticky bit, others may add but not replace.
    if found.mode() & 0o022 != 0 && found.mode() & 0o1000 == 0 {
        return Err(BindError::OpenFolder { dir: dir.to_owned() });
    }
    for _ in 0..TRIES {
        match flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(folder),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(BETWEEN_TRIES),
            Err(error) => return Err(failed(error.into())),
        }
    }
    Err(BindError::FolderBusy { dir: dir.to_owned() })
}

fn remove_stale(path: &Path) -> Result<(), BindError> {
    let unclear = |source| BindError::Unclear { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() => {}
        Ok(_) => return Err(BindError::NotASocket { path: path.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(unclear(error)),
    }
    match StdStream::connect(path) {
        Ok(living) => {
            let peer = rustix::net::sockopt::socket_peercred(living.as_fd());
            let pid = peer.map_or(0, |peer| peer.pid.as_raw_pid());
            Err(BindError::InUse { path: path.to_owned(), pid })
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(unclear)
        }
        Err(error) => Err(unclear(error)),
    }
}

fn listen(path: &Path) -> rustix::io::Result<StdListener> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Before it is bound: the file then appears with this mode, and there is no moment in which others could connect.
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// What the controller serves.
pub fn controller<P: ControllerPlatform>(identity: Identity, platform: Arc<P>) -> Routes {
    Routes::new(identity.into_server()).add_service(Controller::new(platform).into_server())
}

/// What a controller answers by itself while another leads.
pub fn identity(identity: Identity) -> Routes {
    Routes::new(identity.into_server())
}

/// What an agent serves.
pub fn node<P: NodePlatform>(identity: Identity, platform: Arc<P>) -> Routes {
    Routes::new(identity.into_server()).add_service(Node::new(platform).into_server())
}

/// Serves until `stop` ends and every call that was begun is answered.
pub async fn serve(
    socket: Socket,
    routes: Routes,
    stop: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let listener = socket.listener()?;
    Server::builder()
        .max_concurrent_streams(CALLS_OF_A_CONNECTION)
        .add_routes(routes)
        .serve_with_incoming_shutdown(Incoming { listener, pause: None }, stop)
        .await
        .map_err(ServeError::Transport)
}

/// Why serving ended.
#[derive(Debug, Error)]
pub enum ServeError {
    #[error("cannot take connections at {}", path.display())]
    Listener {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot serve any longer")]
    Transport(#[source] tonic::transport::Error),
}

/// The connections that come in; never ends. One that cannot be taken is tried again after a pause, and those that are
/// there go on.
struct Incoming {
    listener: UnixListener,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Stream for Incoming {
    type Item = io::Result<UnixStream>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(context));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(context)) {
                Ok((stream, _)) => return Poll::Ready(Some(Ok(stream))),
                Err(error) => {
                    tracing::warn!("a caller has to wait: its connection cannot be taken: {error}");
                    self.pause = Some(Box::pin(tokio::time::sleep(PAUSE)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o777
    }

    #[test]
    fn socket_is_private_and_goes_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let socket = Socket::bind(&path).unwrap();
        assert_eq!(mode(&path), 0o600);
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn living_socket_is_refused_by_name_and_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let _living = Socket::bind(&path).unwrap();
        let refused = Socket::bind(&path).unwrap_err();
        let pid = i32::try_from(std::process::id()).unwrap();
        assert!(matches!(refused, BindError::InUse { pid: found, .. } if found == pid));
        assert!(refused.to_string().contains("csi.sock"), "{refused}");
        StdStream::connect(&path).unwrap();
    }

    #[test]
    fn stale_socket_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists());
        let _socket = Socket::bind(&path).unwrap();
        StdStream::connect(&path).unwrap();
    }

    #[test]
    fn what_is_no_socket_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "precious").unwrap();
        std::os::unix::fs::symlink(dir.path().join("elsewhere"), &link).unwrap();
        for path in [&file, &link] {
            let refused = Socket::bind(path).unwrap_err();
            assert!(matches!(refused, BindError::NotASocket { .. }), "{refused:?}");
        }
        assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
        assert!(fs::symlink_metadata(&link).is_ok());
    }

    #[test]
    fn folder_must_be_there_and_closed_to_others() {
        let dir = tempfile::tempdir().unwrap();
        let refused = Socket::bind(&dir.path().join("missing/csi.sock")).unwrap_err();
        assert!(matches!(refused, BindError::Folder { .. }), "{refused:?}");
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let refused = Socket::bind(&dir.path().join("csi.sock")).unwrap_err();
        assert!(matches!(refused, BindError::OpenFolder { .. }), "{refused:?}");
        let long = dir.path().join("x".repeat(200));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).unwrap();
        let refused = Socket::bind(&long).unwrap_err();
        assert!(matches!(refused, BindError::TooLong { .. }), "{refused:?}");
    }

    /// Two programs that start at once must not both take a stale socket for theirs.
    #[test]
    fn of_several_starts_at_once_one_has_the_socket() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        for _ in 0..50 {
            drop(StdListener::bind(&path).unwrap());
            let barrier = std::sync::Barrier::new(4);
            let bound: Vec<_> = std::thread::scope(|scope| {
                let start = || {
                    barrier.wait();
                    Socket::bind(&path).ok()
                };
                let starts: Vec<_> = (0..4).map(|_| scope.spawn(start)).collect();
                starts.into_iter().map(|start| start.join().unwrap()).collect()
            });
            assert_eq!(bound.iter().flatten().count(), 1);
            StdStream::connect(&path).unwrap();
        }
    }

    /// A process that was replaced must not take the socket of its successor with it.
    #[test]
    fn socket_of_a_successor_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        let first = Socket::bind(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let _second = Socket::bind(&path).unwrap();
        drop(first);
        StdStream::connect(&path).unwrap();
    }
}
