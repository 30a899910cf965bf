//! The child's side: one request at a time, until the agent's end of the socket closes.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::process::ExitCode;

use super::attach::{attach, relabel};
use super::change::{change_label, read_label};
use super::channel::{self, Incoming, Outgoing};
use super::detach::{InUse, NotClosed, detach};
use super::follow::Follow;
use super::look::{identify, look};
use super::map;
use super::protocol::{FromWorker, Request, Response, ToWorker, chain};
use crate::filesystem;
use crate::mapping;
use crate::runtime_dir::RuntimeDir;

/// What a child does: serves the agent at the other end of its standard input, and ends with it.
///
/// `checkpoint` is called with the name of each step; crash tests stop or kill the child there. Steps: `attach-locked`,
/// `attach-opened`, those of [`super::wipe`], of [`crate::label::bring_up_to_date`] and of
/// [`crate::label::refresh_third_copy`], `attach-labelled`, `guard-unclaimed`, `guard-created`; `attach-relabelled`;
/// `erase-piece` after each, and those of [`crate::label::change_extents`]; `detach-labelled`, `detach-unguarded`,
/// `detach-closed`; and those that [`crate::mapping`] and [`crate::filesystem`] name with their own call of it.
pub fn worker_main(checkpoint: fn(&'static str)) -> ExitCode {
    // So that whoever finds it in a list of processes knows what it is; without the name it works as well.
    let _ = rustix::thread::set_name(c"hotbay-worker");
    ignore_lease_signal();
    match serve(rustix::stdio::stdin(), checkpoint) {
        Ok(()) => ExitCode::SUCCESS,
        // The agent has ended meanwhile; what it was to be told, the next one finds out.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) if error.raw_os_error() == Some(libc::ENOTSOCK) => {
            eprintln!("drive-worker is started by an agent and of no use alone");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("drive-worker: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn serve(socket: impl AsFd, checkpoint: fn(&'static str)) -> io::Result<()> {
    let mut given: Vec<OwnedFd> = Vec::new();
    loop {
        let mut received = Incoming::default();
        received.receive(&socket, true)?;
        let Some((message, descriptors)) = received.whole() else { return Ok(()) };
        match channel::decode(&message)? {
            ToWorker::Descriptors => given = descriptors,
            ToWorker::Do { runtime_dir, request } => {
                let dir = RuntimeDir::at(runtime_dir).map_err(io::Error::other)?;
                let warnings = RefCell::new(Vec::new());
                let follow = Follow { checkpoint: &checkpoint, warnings: &warnings };
                let (response, file) =
                    carry_out(&dir, *request, std::mem::take(&mut given), follow);
                let descriptors: Vec<_> = file.iter().map(AsFd::as_fd).collect();
                let message = channel::encode(&FromWorker { response, warnings: warnings.take() })?;
                Outgoing::new(&message, &descriptors).send(&socket, true)?;
            }
        }
    }
}

fn carry_out(
    dir: &RuntimeDir,
    request: Request,
    given: Vec<OwnedFd>,
    follow: Follow<'_>,
) -> (Response, Option<File>) {
    match request {
        Request::Identify { path } => (Response::Identified(identify(&path)), None),
        Request::Look { path } => (Response::Looked(look(&path)), None),
        Request::Attach(request) => match attach(dir, &request, follow) {
            Ok((attached, file)) => (Response::Attached(Ok(attached)), Some(file)),
            Err(error) => (Response::Attached(Err(error)), None),
        },
        Request::Relabel(request) => {
            (Response::Attached(relabel(dir, &request, given, follow)), None)
        }
        Request::ChangeLabel(request) => {
            (Response::LabelChanged(change_label(dir, &request, given, follow)), None)
        }
        Request::ReadLabel(request) => {
            (Response::LabelRead(read_label(dir, &request, given)), None)
        }
        Request::Detach(request) => {
            let descriptor = given.into_iter().next();
            match detach(dir, &request, descriptor, follow) {
                Ok(detached) => (Response::Detached(detached), None),
                Err(NotClosed { why: InUse::Volumes(volumes), descriptor }) => {
                    (Response::InUse { volumes }, descriptor)
                }
                Err(NotClosed { why: InUse::By(by), descriptor }) => {
                    (Response::StillMapped { by }, descriptor)
                }
            }
        }
        Request::Close => {
            drop(given);
            (Response::Closed, None)
        }
        Request::Map(wanted) => {
            (Response::Mapped(map::map(dir, &wanted, given, follow.checkpoint)), None)
        }
        Request::Unmap { volume } => {
            (Response::Unmapped(mapping::unmap(dir, volume, follow.checkpoint)), None)
        }
        Request::Fence { volume } => {
            (Response::Fenced(mapping::fence(dir, volume, follow.checkpoint)), None)
        }
        Request::GrowMapping(wanted) => {
            (Response::Mapped(map::grow(dir, &wanted, given, follow.checkpoint)), None)
        }
        Request::ListMappings { after } => (Response::Mappings(map::list(dir, after)), None),
        Request::ReadParts { parts, of } => {
            (Response::ReadParts(map::read(parts, of, given)), None)
        }
        Request::Dummy(task) => {
            (Response::Dummy(mapping::dummy::carry_out(dir, &task, follow.checkpoint)), None)
        }
        Request::Filesystem(task) => {
            (Response::Filesystem(filesystem::carry_out(&task, follow.checkpoint)), None)
        }
    }
}

/// Whoever opens a file while we have a lease on it makes the kernel send us a signal that would end us.
fn ignore_lease_signal() {
    #[expect(unsafe_code, reason = "no safe wrapper for signal dispositions")]
    // SAFETY: SIG_IGN is a disposition, not code that would run in a signal handler.
    unsafe {
        libc::signal(libc::SIGIO, libc::SIG_IGN);
    }
}
