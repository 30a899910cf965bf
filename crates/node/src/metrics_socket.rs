//! Shows the agent's numbers to Prometheus, or to a person with curl: HTTP on a Unix socket in the state directory.
//!
//! One question, one answer: this is all of HTTP that is spoken here, and whoever speaks otherwise is hung up on.

use std::io;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;

use crate::discovery::Metrics;

/// The socket's name in the state directory.
const NAME: &str = "metrics.sock";
/// Longest question.
const MAX_QUESTION: usize = 8 << 10;
/// How long a question and its answer may take.
const LIMIT: Duration = Duration::from_secs(5);
/// So many are answered at once; more wait.
const MAX_AT_ONCE: usize = 16;

/// Answers until it is dropped. An agent without the socket is an agent all the same: that is told, and no more.
pub(crate) async fn serve(state_dir: &Path, metrics: Metrics) {
    let path = state_dir.join(NAME);
    // One that an earlier start has left: there is one agent for each state directory.
    drop(std::fs::remove_file(&path));
    let listener = match UnixListener::bind(&path) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::warn!(
                "{} cannot be listened on, so nobody sees metrics: {error}",
                path.display()
            );
            return std::future::pending().await;
        }
    };
    let mut answering = JoinSet::new();
    loop {
        while answering.len() >= MAX_AT_ONCE {
            answering.join_next().await;
        }
        match listener.accept().await {
            Ok((stream, _)) => {
                let metrics = metrics.clone();
                answering.spawn(async move {
                    // Whoever hangs up has no use for words about it.
                    drop(tokio::time::timeout(LIMIT, answer(stream, &metrics)).await);
                });
            }
            // Out of descriptors, most likely; the next may be luckier.
            Err(_) => tokio::time::sleep(LIMIT).await,
        }
    }
}

async fn answer(mut stream: UnixStream, metrics: &Metrics) -> io::Result<()> {
    let mut question = Vec::new();
    while !question.windows(4).any(|end| end == b"\r\n\r\n") {
        if question.len() >= MAX_QUESTION || stream.read_buf(&mut question).await? == 0 {
            return Ok(());
        }
    }
    let (status, kind, body) = if question.starts_with(b"GET /metrics ") {
        let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
        ("200 OK", kind, metrics.text())
    } else {
        ("404 Not Found", "text/plain", "ask for /metrics\n".to_owned())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    stream.shutdown().await
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn ask(path: &Path, question: &[u8]) -> String {
        let mut stream = loop {
            match UnixStream::connect(path).await {
                Ok(stream) => break stream,
                Err(_) => tokio::task::yield_now().await,
            }
        };
        stream.write_all(question).await.unwrap();
        stream.shutdown().await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn metrics_are_shown_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        // Left by a start that was killed.
        std::fs::write(&path, "").unwrap();
        let script = async {
            let shown = ask(&path, b"GET /metrics HTTP/1.1\r\nHost: agent\r\n\r\n").await;
            assert!(
                shown.starts_with("HTTP/1.1 200 OK\r\n") && shown.ends_with("# EOF\n"),
                "{shown}"
            );
            let other = ask(&path, b"GET / HTTP/1.1\r\n\r\n").await;
            assert!(other.starts_with("HTTP/1.1 404"), "{other}");
            assert_eq!(ask(&path, b"half a question").await, "");
        };
        tokio::select! {
            () = serve(dir.path(), Metrics::default()) => panic!("it does not end"),
            () = script => {}
        }
    }
}
