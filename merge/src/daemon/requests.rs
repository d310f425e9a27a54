//! What a request is answered with.

use std::os::fd::OwnedFd;

use crate::base::protocol::{Answer, Refusal, Request, VERSION};
use crate::daemon::domain_metrics::Figures;
use crate::daemon::page_store::{Refused, Store};
use crate::daemon::programs::Programs;
use crate::daemon::untrusted_fds::Stranger;

/// An answer and the file beside it.
pub type Reply = (Answer, Option<OwnedFd>);

fn refused((reason, line): Refused) -> Reply {
    (Answer::Refused { reason, line }, None)
}

fn with_index(store: &Store, answer: Answer) -> Reply {
    match store.index().try_clone_to_owned() {
        Ok(index) => (answer, Some(index)),
        Err(error) => {
            refused((Refusal::Full, format!("the page store has no file descriptor left: {error}")))
        }
    }
}

/// Serves a request of `client`, all that is about its own domain alone. `file` came with it.
pub fn answer(
    store: &mut Store,
    figures: &mut Figures,
    programs: &mut Programs,
    client: u64,
    request: Request,
    file: Option<Stranger>,
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
            figures.offered_pages_total += pages as u64;
            match store.offer(client, file, pages as usize) {
                Ok(taken) => {
                    figures.new_pages_total += taken.new_pages as u64;
                    let new_pages = taken.new_pages;
                    let (segment, file, segment_pages) = match taken.at {
                        Some((segment, file, room)) => (segment, Some(file), room),
                        None => (0, None, 0),
                    };
                    (Answer::Taken { new_pages, segment, segment_pages }, file)
                }
                Err(why) => refused(why),
            }
        }
        (Request::Attach { segment }, None) => match store.attach(segment) {
            Some((file, segment_pages)) => (Answer::Attached { segment_pages }, Some(file)),
            None => refused((Refusal::Gone, format!("segment {segment} is gone"))),
        },
        (Request::Private { pages }, None) => match store.note_elsewhere(client, &pages) {
            Ok(()) => (Answer::Noted, None),
            Err(why) => refused(why),
        },
        (Request::Claim { pages }, None) => (Answer::Claimed { yours: store.claim(client, &pages) }, None),
        (Request::Report(report), None) => {
            programs.tells(client, report);
            (Answer::Noted, None)
        }
        (request, file) => {
            let with = if file.is_some() { "with" } else { "without" };
            refused((Refusal::Wrong, format!("{request:?} {with} a file")))
        }
    };
    figures.requests_total += 1;
    figures.refused_total += matches!(reply.0, Answer::Refused { .. }) as u64;
    reply
}
