//! An instance's life in its sandbox, from its start until nothing of it is left.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;
use worker_page::data::Event;

use super::Instance;
use super::requests::{Overdue, Stage};
use super::shutdown::{FAILURE, TIMEOUT};
use crate::base::error::ApiError;
use crate::base::limits;
use crate::instance::runtime_api;
use crate::invocation::output::Output;
use crate::invocation::request::{End, Outcome};
use crate::sandbox::interface::{Ended, Ending, Handler};
use worker_pool::RequestId;

impl Instance {
    /// The whole life. Returns when its last process has ended and nothing of it is left.
    pub(crate) async fn live(self: Arc<Self>) {
        if let Err(error) = self.try_to_live().await {
            tracing::error!("{}: {error:#}", self.label());
            self.note(Event { message: Some(format!("{error:#}")), ..self.event("fail") });
            let failure = ApiError::service(format!("no instance could be started: {error:#}"));
            self.state().failure = Some(Err(failure));
        }
        self.scheduler.clone().ended(self.id);
    }

    async fn try_to_live(self: &Arc<Self>) -> Result<()> {
        let sandbox = self.context.maker.clone().start(self.order()).await?;
        let sandbox = self.sandbox.get_or_init(|| sandbox);
        self.extensions_started(sandbox.extensions());
        let instance = Arc::downgrade(self);
        let filter = move |printer, line: &str| {
            instance.upgrade().is_none_or(|instance| instance.publish_line(printer, line))
        };
        let of_extensions = sandbox.take_extensions_output();
        let (own, prompt) = (sandbox.take_output(), sandbox.prints_at_once());
        let output = Output::new(self.label(), self.log(), own, of_extensions, prompt, Box::new(filter));
        assert!(self.output.set(output).is_ok(), "an instance starts once");
        self.publish_init();
        // Ends with this scope, and with it every connection.
        let mut tasks = JoinSet::new();
        let (served, instance) = (sandbox.clone(), self.clone());
        let handler: Handler =
            Arc::new(move |request| Box::pin(runtime_api::handle(instance.clone(), request)));
        tasks.spawn(async move { served.serve(handler).await });
        let timed = self.clone();
        tasks.spawn(async move {
            loop {
                timed.out_of_time(timed.timers.ended().await);
            }
        });
        let reader = self.clone();
        tasks.spawn(async move {
            if let Some(output) = reader.output.get() {
                output.follow().await;
            }
        });
        let ending = async {
            tokio::select! {
                ended = sandbox.ending() => ended,
                never = self.freeze_while_idle(&**sandbox) => match never {},
            }
        };
        let ended = self.until_it_ends(ending).await;
        self.report_failed_start();
        self.shut_down(&**sandbox, ended).await;
        // While it is still served: a runtime that is about to end does not notice it.
        sandbox.end().await;
        self.end_deliveries();
        if let Some(output) = self.output.get() {
            output.finish();
        }
        Ok(())
    }

    /// Waits until it has ended by itself, is to end, or did not start in time. Returns the process that has
    /// ended by itself.
    async fn until_it_ends(&self, ending: impl Future<Output = Ended>) -> Option<Ending> {
        let timeout = Duration::from_secs(self.deployment.settings.timeout_s.into());
        let at_least =
            if self.deployment.settings.at_once() > 1 { limits::INIT_OF_SEVERAL } else { limits::INIT };
        let init = at_least.max(timeout) * self.context.maker.slower();
        tokio::select! {
            ended = ending => {
                self.state().extensions.end_because_of(FAILURE);
                self.ended_by_itself(&ended);
                return Some(ended.how);
            }
            () = self.stop.notified() => self.stopped(),
            () = self.still_starting_after(init) => {
                let message = format!("Error: Init phase timed out after {} seconds", init.as_secs());
                let timed_out = Some(End::TimedOut(init.as_secs() as u32));
                let outcome = Outcome { end: timed_out, ..Outcome::error("Sandbox.Timedout", &message) };
                let mut state = self.state();
                state.failure = Some(Ok(outcome));
                state.extensions.end_because_of(TIMEOUT);
                drop(state);
                tracing::warn!("{}: {message}", self.label());
            }
        }
        None
    }

    /// It is to end. What it still has is lost: the worker answers those callers once it has ended.
    fn stopped(&self) {
        let (_, running) = self.state().requests.end();
        running.iter().for_each(|work| work.timer.abort());
    }

    async fn still_starting_after(&self, limit: Duration) {
        tokio::time::sleep(limit).await;
        if self.was_ready() {
            std::future::pending::<()>().await;
        }
    }

    /// The runtime has ended by itself: callers that wait for it receive the reason.
    fn ended_by_itself(&self, Ended { how: ending, out_of_memory }: &Ended) {
        let (stage, running) = self.state().requests.end();
        let memory = self.deployment.settings.memory_mib;
        let cause = if *out_of_memory { format!(" (memory of {memory} MB used up)") } else { String::new() };
        tracing::warn!("{}: {ending}{cause}", self.label());
        self.note(Event { message: Some(format!("{ending}{cause}")), ..self.event("ended") });
        let kind = ending.kind();
        {
            let mut state = self.state();
            if stage != Stage::Ended && !state.extensions.was_ready() {
                // The runtime's own error is better.
                let outcome = || Ok(Outcome::error(kind, &format!("Error: {ending}{cause}")));
                state.failure.get_or_insert_with(outcome);
            }
        }
        for work in running {
            work.timer.abort();
            let message = format!("RequestId: {} Error: {ending}{cause}", work.invocation.id);
            self.report(work, Outcome::error(kind, &message));
        }
    }

    /// A process of the runtime's has ended with this status: the caller whose request it had receives the
    /// reason. The others go on.
    pub(crate) fn process_ended(&self, process: u32, status: i32) {
        let Some(id) = self.state().requests.process_ended(process) else { return };
        let ending = Ending::of_wait_status(status);
        tracing::warn!("{}: {ending}, in a process that had request {id}", self.label());
        // Its answer may have been received just now.
        drop(self.finish(id, Outcome::error(ending.kind(), &format!("RequestId: {id} Error: {ending}"))));
    }

    pub(super) fn out_of_time(&self, request: RequestId) {
        let timeout_s = self.deployment.settings.timeout_s;
        let (work, is_last, extension_works) = {
            let mut state = self.state();
            let extension_works = state.extensions.are_at_work();
            match state.requests.out_of_time(request, extension_works) {
                Overdue::No => return,
                Overdue::Request(work) => (Some(work), false, extension_works),
                Overdue::Last(work) => {
                    state.extensions.end_because_of(TIMEOUT);
                    (work, true, extension_works)
                }
            }
        };
        match work {
            Some(work) => {
                let outcome = Outcome::timed_out(work.invocation.id, timeout_s);
                tracing::warn!("{}: {} did not answer in {timeout_s} s", self.label(), work.invocation.id);
                self.report(work, outcome);
            }
            None if extension_works => {
                tracing::warn!("{}: answered, but an extension was not done in {timeout_s} s", self.label())
            }
            None => tracing::warn!("{}: answered, but asked for no more work in {timeout_s} s", self.label()),
        }
        if is_last && self.deployment.settings.at_once() > 1 {
            self.scheduler.clone().drain(self.id);
        } else if is_last {
            self.scheduler.clone().end(self.id);
        }
    }
}
