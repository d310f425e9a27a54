//! What running stores say of their pages.

use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A store answers at once; those that are stuck must not hold up a sample.
const PATIENCE: Duration = Duration::from_millis(200);

/// Pages of all stores, which are asked at the same time. Blocks. If the runtime ends meanwhile, no store
/// is asked any more.
pub fn pages_of_all(sockets: impl Iterator<Item = PathBuf>) -> u64 {
    let mut asked: JoinSet<Option<u64>> = sockets.map(pages_of).collect();
    Handle::current().block_on(async {
        let mut pages = 0;
        while let Some(said) = asked.join_next().await {
            pages += said.ok().flatten().unwrap_or(0);
        }
        pages
    })
}

/// Pages that the store reports, if it answers.
async fn pages_of(socket: PathBuf) -> Option<u64> {
    let asked = async {
        let mut stream = UnixStream::connect(socket).await?;
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: store\r\n\r\n").await?;
        let mut text = String::new();
        stream.take(1 << 20).read_to_string(&mut text).await?;
        std::io::Result::Ok(store_pages(&text))
    };
    timeout(PATIENCE, asked).await.ok()?.ok()
}

/// The sum over the store's domains; there is one, or none before the first call.
fn store_pages(figures: &str) -> u64 {
    let lines = figures.lines().filter(|line| line.starts_with("mayfly_share_store_pages{"));
    lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_read_from_the_figures() {
        let text = "# TYPE mayfly_share_store_pages gauge\nmayfly_share_store_pages{domain=\"everyone\"} 12\n\
                    mayfly_share_store_pages_other{} 5\n";
        assert_eq!((store_pages(text), store_pages("")), (12, 0));
    }

    #[test]
    fn worker_that_ends_while_it_asks_stores_does_not_panic() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("figures");
        let silent = std::os::unix::net::UnixListener::bind(&place).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (send, received) = std::sync::mpsc::channel();
        runtime.spawn_blocking(move || send.send(pages_of_all([place].into_iter())));
        // It has received the request by now.
        silent.accept().unwrap();
        drop(runtime);
        assert_eq!(received.recv(), Ok(0));
    }

    #[tokio::test]
    async fn a_stuck_store_delays_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("figures");
        // It accepts no connections, so that in the end its backlog is full.
        let stuck = std::os::unix::net::UnixListener::bind(&place).unwrap();
        rustix::net::listen(&stuck, 1).unwrap();
        let asked = || timeout(Duration::from_secs(60), pages_of(place.clone()));
        assert_eq!(asked().await, Ok(None));
        let mut waiting = Vec::new();
        while let Ok(one) = UnixStream::connect(&place).await {
            waiting.push(one);
        }
        assert_eq!(asked().await, Ok(None));
    }
}
