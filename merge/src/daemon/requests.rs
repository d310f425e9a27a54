//! Handles the requests of a domain's clients.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use crate::base::protocol::{Answer, Refusal, Request, VERSION};
use crate::daemon::domain_metrics::DomainMetrics;
use crate::daemon::page_store::{PageStore, Refused, cannot_add};
use crate::daemon::programs::Programs;
use crate::daemon::untrusted_fds::UntrustedFd;

/// An answer and the file sent with it.
pub type Reply = (Answer, Option<OwnedFd>);

fn refused((reason, line): Refused) -> Reply {
    (Answer::Refused { reason, line }, None)
}

fn with_index(store: &PageStore, answer: Answer) -> Reply {
    match store.index().try_clone_to_owned() {
        Ok(index) => (answer, Some(index)),
        Err(error) => refused(cannot_add(Errno::from_io_error(&error).unwrap_or(Errno::IO))),
    }
}

/// Handles a request of `client` that concerns its own domain alone. `file` was sent with it.
pub fn handle(
    store: &mut PageStore,
    metrics: &mut DomainMetrics,
    programs: &mut Programs,
    client: u64,
    request: Request,
    file: Option<UntrustedFd>,
) -> Reply {
    let reply = match (request, file) {
        (Request::Hello { version: VERSION }, None) => {
            let secret = Box::new(*store.secret().bytes());
            with_index(store, Answer::Welcome { identity: store.identity(), secret })
        }
        (Request::Hello { version }, None) => refused((
            Refusal::Version,
            format!(
                "the page store speaks version {VERSION} and the program {version}: use one release of both"
            ),
        )),
        (Request::Index, None) => with_index(store, Answer::Index),
        (Request::Offer { pages }, Some(file)) => {
            metrics.offered_pages_total += pages as u64;
            match store.offer(client, file, pages as usize) {
                Ok(accepted) => {
                    metrics.new_pages_total += accepted.new_pages as u64;
                    let new_pages = accepted.new_pages;
                    let (segment, file, segment_pages) = match accepted.at {
                        Some((segment, file, room)) => (segment, Some(file), room),
                        None => (0, None, 0),
                    };
                    (Answer::Accepted { new_pages, segment, segment_pages }, file)
                }
                Err(why) => refused(why),
            }
        }
        (Request::Attach { segment }, None) => match store.attach(segment) {
            Some(Ok((file, segment_pages))) => (Answer::Attached { segment_pages }, Some(file)),
            Some(Err(errno)) => refused(cannot_add(errno)),
            None => refused((Refusal::NoSegment, format!("segment {segment} does not exist any more"))),
        },
        (Request::Private { pages }, None) => match store.note_private(client, &pages) {
            Ok(()) => (Answer::Noted, None),
            Err(why) => refused(why),
        },
        (Request::Claim { pages }, None) => (Answer::Claimed { yours: store.claim(client, &pages) }, None),
        (Request::Report(report), None) => {
            programs.reported(client, report);
            (Answer::Noted, None)
        }
        (request, file) => {
            let with = if file.is_some() { "with" } else { "without" };
            refused((Refusal::Wrong, format!("{request:?} {with} a file")))
        }
    };
    metrics.requests_total += 1;
    metrics.refused_total += matches!(reply.0, Answer::Refused { .. }) as u64;
    reply
}
