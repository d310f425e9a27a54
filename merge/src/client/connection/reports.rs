//! What client and store report to one another: pages that stay private, what this program's calls have done,
//! and the store's metrics.

use super::{Connection, not_a_page_store};
use crate::base::error::Error;
use crate::base::page::PageHash;
use crate::base::protocol::{Answer, MAX_HASHES, Report, Request};

impl Connection {
    /// Reports pages that stay private.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub fn report_private(&mut self, pages: &[PageHash]) -> Result<(), Error> {
        for pages in pages.chunks(MAX_HASHES) {
            self.ask(&Request::Private { pages: pages.to_vec() }, None)?;
        }
        Ok(())
    }

    /// Reports what this program's calls have done, if that has changed since the last report.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub fn report(&mut self, report: Report) -> Result<(), Error> {
        if report != self.last_report {
            self.last_report = report;
            self.ask(&Request::Report(report), None)?;
        }
        Ok(())
    }

    /// The store's metrics as JSON.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub fn status(&mut self) -> Result<String, Error> {
        self.ask_json(&Request::Status)
    }

    /// Programs after the first `skip` as JSON, a piece of the list.
    ///
    /// # Errors
    /// As [`refresh`](Self::refresh).
    pub fn programs(&mut self, skip: u32) -> Result<String, Error> {
        self.ask_json(&Request::Programs { skip })
    }

    fn ask_json(&mut self, request: &Request) -> Result<String, Error> {
        match self.ask(request, None)? {
            (Answer::Status { json }, _) => Ok(json),
            _ => Err(not_a_page_store(&self.path)),
        }
    }
}
