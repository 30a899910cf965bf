//! Whether this process lives and can be used, for whoever supervises it: two plain HTTP answers on their own port.
//! They say nothing about drives or volumes, so nobody has to prove who they are.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, Request, Response, StatusCode};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

/// How many connections are served at a time; the next ones wait.
const CONNECTIONS: usize = 32;
/// Whoever has not asked after so long is hung up on.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// The pause after the kernel could not give us a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What is answered: why not, if not.
pub type Ready = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// Listens; answers for as long as the process lives.
pub async fn serve_health(address: &str, ready: Ready) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind(address).await?;
    let bound = listener.local_addr()?;
    tokio::spawn(run(listener, ready));
    Ok(bound)
}

async fn run(listener: TcpListener, ready: Ready) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!("cannot take a connection: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let ready = Arc::clone(&ready);
        tokio::spawn(async move {
            let _permit = permit;
            let answer = service_fn(move |request| {
                let answered = answer(&request, &ready);
                async move { Ok::<_, Infallible>(answered) }
            });
            let served = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(HEAD_LIMIT)
                .keep_alive(false)
                .serve_connection(TokioIo::new(stream), answer)
                .await;
            if let Err(error) = served {
                tracing::debug!("whoever asked for health hung up: {error}");
            }
        });
    }
}

fn answer<B>(request: &Request<B>, ready: &Ready) -> Response<Body> {
    let (code, words) = match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => (StatusCode::OK, "ok".to_owned()),
        (&Method::GET, "/readyz") => match ready() {
            Ok(()) => (StatusCode::OK, "ok".to_owned()),
            Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
        },
        _ => (StatusCode::NOT_FOUND, "GET /healthz or /readyz".to_owned()),
    };
    let mut response = Response::new(Body::from(words + "\n"));
    *response.status_mut() = code;
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;

    use super::*;

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: h\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn alive_is_not_ready() {
        let ready: Ready = Arc::new(|| Err("no controller leads".to_owned()));
        let address = serve_health("127.0.0.1:0", ready).await.unwrap();
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let answer = ask(address, "/readyz").await;
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert!(answer.ends_with("no controller leads\n"), "{answer}");
        assert!(ask(address, "/else").await.starts_with("HTTP/1.1 404"));
    }
}
