//! What Lambda itself reports of an instance: lines of its log, in plain text or in JSON, and events for
//! subscribers.

use super::{Instance, Work};
use crate::base::error::ApiError;
use crate::invocation::platform::{PlatformEvent, Status};
use crate::invocation::request::{End, Figures, Invocation, Outcome, init_report_line, report_line};

impl Instance {
    /// The instance begins to start.
    pub(super) fn publish_init(&self) {
        let deployment = &self.deployment;
        let (name, version) = (&deployment.name, &deployment.version);
        let stream = deployment.log_stream(self.id);
        let memory_mib = deployment.settings.memory_mib;
        self.publish(|| PlatformEvent::init_start(name, version, &stream, memory_mib));
    }

    pub(crate) fn was_restored(&self) -> bool {
        self.sandbox.get().is_some_and(|sandbox| sandbox.was_restored())
    }

    /// A line of the log, if it is plain text.
    fn say(&self, line: &str) {
        if self.deployment.settings.logging.json.is_none()
            && let Some(output) = self.output.get()
        {
            output.say(line);
        }
    }

    /// A request begins.
    pub(super) fn say_start(&self, invocation: &Invocation) {
        let version = &self.deployment.version;
        self.say(&format!("START RequestId: {} Version: {version}", invocation.id));
        self.publish(|| PlatformEvent::start(invocation, version));
    }

    /// A request's last lines. Takes what they have from the outcome.
    fn say_end(&self, invocation: &Invocation, figures: &Figures, outcome: &mut Outcome) {
        let end = outcome.end.take();
        let error = outcome.failed.then(|| outcome.error_type());
        let status = Status::new(end.as_ref(), error);
        self.publish(|| PlatformEvent::runtime_done(invocation, figures, outcome.payload.len(), &status));
        if let Some(lines) = end.as_ref().map(|end| end.lines(invocation.id)) {
            lines.iter().for_each(|line| self.say(line));
            // No event of the Telemetry API: its clients would not know it.
            self.log_in_json(&PlatformEvent::fault(&lines));
        }
        self.say(&format!("END RequestId: {}", invocation.id));
        self.say(&report_line(invocation.id, figures));
        self.publish(|| PlatformEvent::report(invocation, figures, &status));
        if let Some(output) = self.output.get() {
            outcome.log_tail = match self.deployment.settings.at_once() {
                1 => output.tail(),
                _ => output.tail_of(invocation.id),
            };
        }
    }

    /// Answers the caller and writes the log's last lines.
    pub(super) fn report(&self, work: Work, mut outcome: Outcome) {
        let init = self.state().init.take();
        let figures = Figures {
            duration: work.since.elapsed(),
            init,
            restored: self.was_restored(),
            memory_mib: self.deployment.settings.memory_mib,
            peak_bytes: self.peak_bytes(),
            end: outcome.end.as_ref().map(End::status),
        };
        if let Some(output) = self.output.get() {
            output.catch_up(self.is_alone());
        }
        self.say_end(&work.invocation, &figures, &mut outcome);
        self.scheduler.clone().answer(self.id, work.request, Ok(outcome));
    }

    /// Writes to the function's log that it could not start.
    pub(super) fn report_failed_start(&self) {
        let (line, status) = {
            let state = self.state();
            match &state.failure {
                Some(Ok(outcome)) if !state.extensions.was_ready() => {
                    let error = (outcome.end.is_none()).then(|| outcome.error_type());
                    (outcome.status(), Status::new(outcome.end.as_ref(), error))
                }
                _ => return,
            }
        };
        if let Some(output) = self.output.get() {
            output.catch_up(self.is_alone());
            self.publish(|| PlatformEvent::init_runtime_done(&status));
            self.say(&init_report_line(self.age(), &line));
            self.publish(|| PlatformEvent::init_report(self.age(), &status));
            let figures = Figures {
                duration: self.age(),
                init: None,
                restored: false,
                memory_mib: self.deployment.settings.memory_mib,
                peak_bytes: self.peak_bytes(),
                end: Some(line),
            };
            self.state().failed_start = Some(figures);
        }
    }

    /// Why it could not start, once it has ended: the answer to this request, which waited for it. Writes
    /// the lines that the function's log has for each request.
    pub(crate) fn take_failure(&self, invocation: &Invocation) -> Result<Outcome, ApiError> {
        let (failure, failed_start) = {
            let mut state = self.state();
            (state.failure.take(), state.failed_start.take())
        };
        let unknown = || Err(ApiError::service("the instance ended while it started"));
        let mut outcome = failure.unwrap_or_else(unknown)?;
        if let Some(figures) = failed_start {
            self.say_start(invocation);
            self.say_end(invocation, &figures, &mut outcome);
        }
        Ok(outcome)
    }
}
