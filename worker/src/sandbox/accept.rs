//! Accepts the connections of programs inside an instance, a bounded number at once.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

/// Between attempts, where the worker has no descriptor for a connection.
const PAUSE: Duration = Duration::from_millis(100);

/// Has `serve` serve each connection, with as many at once as there are `places`; more wait. Until this is
/// dropped, and with it every connection.
///
/// # Errors
/// The socket cannot be used.
pub(crate) async fn accept<Serving>(
    listener: &TcpListener,
    places: Arc<Semaphore>,
    label: &str,
    serve: impl Fn(TcpStream) -> Serving,
) -> io::Result<()>
where
    Serving: Future<Output = ()> + Send + 'static,
{
    let listener = listener.try_clone()?;
    listener.set_nonblocking(true)?;
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut connections = JoinSet::new();
    loop {
        let place = places.clone().acquire_owned().await.expect("it is never closed");
        while connections.try_join_next().is_some() {}
        match listener.accept().await {
            Ok((stream, _)) => {
                let serving = serve(stream);
                connections.spawn(async move {
                    serving.await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::warn!("{label}: {error}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
