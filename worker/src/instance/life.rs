//! An instance's life in its sandbox, from its start until nothing of it is left.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;
use worker_page::data::Event;

use super::{Instance, Phase, Work, lock};
use crate::base::error::ApiError;
use crate::base::limits;
use crate::instance::runtime_api;
use crate::invocation::output::Output;
use crate::invocation::request::{End, Figures, Invocation, Outcome, init_report_line, report_line};
use crate::sandbox::interface::{Ended, Handler};
use worker_pool::RequestId;

impl Instance {
    /// The whole life. Returns when its last process has ended and nothing of it is left.
    pub(crate) async fn live(self: Arc<Self>) {
        if let Err(error) = self.try_to_live().await {
            tracing::error!("{}: {error:#}", self.label());
            self.note(Event { message: Some(format!("{error:#}")), ..self.event("fail") });
            *lock(&self.failure) =
                Some(Err(ApiError::service(format!("no instance could be started: {error:#}"))));
        }
        self.scheduler.clone().ended(self.id);
    }

    async fn try_to_live(self: &Arc<Self>) -> Result<()> {
        let sandbox = self.context.maker.clone().start(self.order()).await?;
        let sandbox = self.sandbox.get_or_init(|| sandbox);
        self.extensions_started(sandbox.extensions());
        let output = Output::new(self.label(), self.log(), sandbox.take_output());
        assert!(self.output.set(output).is_ok(), "an instance starts once");
        // Ends with this scope, and with it every connection.
        let mut tasks = JoinSet::new();
        let (served, instance) = (sandbox.clone(), self.clone());
        let handler: Handler =
            Arc::new(move |request| Box::pin(runtime_api::handle(instance.clone(), request)));
        tasks.spawn(async move { served.serve(handler).await });
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
        self.until_it_ends(ending).await;
        self.report_failed_start();
        self.shut_extensions_down(&**sandbox).await;
        // While it is still served: a runtime that is about to end does not notice it.
        sandbox.end().await;
        Ok(())
    }

    /// Waits until it has ended by itself, is to end, or did not start in time.
    async fn until_it_ends(&self, ending: impl Future<Output = Ended>) {
        let timeout = Duration::from_secs(self.deployment.settings.timeout_s.into());
        let init = limits::INIT.max(timeout) * self.context.maker.slower();
        tokio::select! {
            ended = ending => self.ended_by_itself(&ended),
            () = self.stop.notified() => *lock(&self.phase) = Phase::Ended,
            () = self.still_starting_after(init) => {
                let message = format!("Error: Init phase timed out after {} seconds", init.as_secs());
                let timed_out = Some(End::TimedOut(init.as_secs() as u32));
                let outcome = Outcome { end: timed_out, ..Outcome::error("Sandbox.Timedout", &message) };
                *lock(&self.failure) = Some(Ok(outcome));
                tracing::warn!("{}: {message}", self.label());
            }
        }
    }

    async fn still_starting_after(&self, limit: Duration) {
        tokio::time::sleep(limit).await;
        if self.was_ready() {
            std::future::pending::<()>().await;
        }
    }

    /// The runtime has ended by itself: the caller that waits for it receives the reason.
    fn ended_by_itself(&self, Ended { how: ending, out_of_memory }: &Ended) {
        let phase = std::mem::replace(&mut *lock(&self.phase), Phase::Ended);
        let memory = self.deployment.settings.memory_mib;
        let cause = if *out_of_memory { format!(" (memory of {memory} MB used up)") } else { String::new() };
        tracing::warn!("{}: {ending}{cause}", self.label());
        self.note(Event { message: Some(format!("{ending}{cause}")), ..self.event("ended") });
        let kind = ending.kind();
        match phase {
            Phase::Busy(work) => {
                work.timer.abort();
                let message = format!("RequestId: {} Error: {ending}{cause}", work.invocation.id);
                self.report(work, Outcome::error(kind, &message));
            }
            Phase::Init | Phase::Waiting(_) if !self.was_ready() => {
                // The runtime's own error is better.
                lock(&self.failure)
                    .get_or_insert_with(|| Ok(Outcome::error(kind, &format!("Error: {ending}{cause}"))));
            }
            Phase::Answered(timer) => timer.abort(),
            Phase::Init | Phase::Waiting(_) | Phase::Ended => {}
        }
    }

    pub(super) fn out_of_time(&self, request: RequestId) {
        let timeout_s = self.deployment.settings.timeout_s;
        let phase = {
            let mut phase = lock(&self.phase);
            // It may have gone on to another request just now.
            let overdue = match &*phase {
                Phase::Busy(work) => work.request == request,
                Phase::Answered(_) => true,
                Phase::Waiting(_) => self.extension_is_at_work(),
                _ => false,
            };
            if !overdue {
                return;
            }
            std::mem::replace(&mut *phase, Phase::Ended)
        };
        self.ran_out_of_time();
        match phase {
            Phase::Busy(work) => {
                let outcome = Outcome::timed_out(&work.invocation.id, timeout_s);
                tracing::warn!("{}: {} did not answer in {timeout_s} s", self.label(), work.invocation.id);
                self.report(work, outcome);
            }
            Phase::Waiting(_) => {
                tracing::warn!("{}: answered, but an extension was not done in {timeout_s} s", self.label())
            }
            _ => tracing::warn!("{}: answered, but asked for no more work in {timeout_s} s", self.label()),
        }
        self.scheduler.clone().end(self.id);
    }

    /// Answers the caller and writes the log's last lines.
    pub(super) fn report(&self, work: Work, mut outcome: Outcome) {
        let end = outcome.end.take();
        let figures = Figures {
            duration: work.since.elapsed(),
            init: lock(&self.init).take(),
            memory_mib: self.deployment.settings.memory_mib,
            peak_bytes: self.peak_bytes(),
            end: end.as_ref().map(End::status),
        };
        if let Some(output) = self.output.get() {
            output.catch_up();
            say_end(output, &work.invocation.id, end.as_ref(), &figures);
            outcome.log_tail = output.tail();
        }
        self.scheduler.answer(self.id, work.request, Ok(outcome));
    }

    /// Writes to the function's log that it could not start.
    fn report_failed_start(&self) {
        let status = match &*lock(&self.failure) {
            Some(Ok(outcome)) if !self.was_ready() => outcome.status(),
            _ => return,
        };
        if let Some(output) = self.output.get() {
            output.catch_up();
            output.say(&init_report_line(self.age(), &status));
            *lock(&self.failed_start) = Some(Figures {
                duration: self.age(),
                init: None,
                memory_mib: self.deployment.settings.memory_mib,
                peak_bytes: self.peak_bytes(),
                end: Some(status),
            });
        }
    }

    /// Why it could not start, once it has ended: the answer to this request, which waited for it. Writes
    /// the lines that the function's log has for each request.
    pub(crate) fn take_failure(&self, invocation: &Invocation) -> Result<Outcome, ApiError> {
        let failure = lock(&self.failure).take();
        let unknown = || Err(ApiError::service("the instance ended while it started"));
        let mut outcome = failure.unwrap_or_else(unknown)?;
        if let (Some(output), Some(figures)) = (self.output.get(), lock(&self.failed_start).take()) {
            output.say(&self.start_line(invocation));
            say_end(output, &invocation.id, outcome.end.take().as_ref(), &figures);
            outcome.log_tail = output.tail();
        }
        Ok(outcome)
    }
}

/// Writes a request's last lines.
fn say_end(output: &Output, id: &str, end: Option<&End>, figures: &Figures) {
    end.into_iter().flat_map(|end| end.lines(id)).for_each(|line| output.say(&line));
    output.say(&format!("END RequestId: {id}"));
    output.say(&report_line(id, figures));
}
