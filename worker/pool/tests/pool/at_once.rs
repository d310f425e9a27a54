//! Instances that serve several requests at once.

use std::time::Duration;

use worker_pool::{Action, FunctionId as F, InstanceId as I, Pool, RequestId as R, Time};

use super::capacity;

const SOON: Time = Duration::from_millis(1);

/// A pool whose function 1 has an instance that may have two requests at once and has asked for both.
fn two_at_once() -> Pool {
    let mut pool = Pool::new(capacity());
    pool.set_function_at_once(F(1), 128, 2);
    pool.request(F(1), R(0), Time::ZERO);
    assert_eq!(pool.request(F(1), R(1), Time::ZERO), [], "the instance that starts is enough for both");
    assert_eq!(pool.ready(I(1), SOON), [Action::Dispatch { instance: I(1), request: R(0) }]);
    assert_eq!(pool.ready(I(1), SOON), [Action::Dispatch { instance: I(1), request: R(1) }]);
    pool
}

#[test]
fn an_instance_serves_as_many_requests_at_once_as_its_runtime_asks_for() {
    let mut pool = two_at_once();
    assert_eq!((pool.counts(Some(F(1))).busy, pool.counts(Some(F(1))).running), (1, 2));
    assert_eq!(
        pool.request(F(1), R(2), SOON),
        [Action::Start { instance: I(2), function: F(1) }],
        "it has no place left"
    );
    assert_eq!(pool.answered(I(1), R(0), SOON), []);
    assert_eq!(
        pool.ready(I(1), SOON),
        [Action::Dispatch { instance: I(1), request: R(2) }],
        "the first that asks"
    );
    assert_eq!(pool.ready(I(2), SOON), []);
    assert_eq!(pool.request(F(1), R(3), SOON), [Action::Dispatch { instance: I(2), request: R(3) }]);
}

#[test]
fn requests_of_an_instance_stay_within_its_figure_whatever_it_asks_for() {
    let mut pool = two_at_once();
    // As a runtime does that asks again before it has answered.
    pool.ready(I(1), SOON);
    pool.ready(I(1), SOON);
    assert_eq!(pool.request(F(1), R(2), SOON), [Action::Start { instance: I(2), function: F(1) }]);
    assert_eq!(pool.answered(I(1), R(1), SOON), [Action::Dispatch { instance: I(1), request: R(2) }]);
}

#[test]
fn of_two_instances_the_one_with_most_requests_is_given_the_next() {
    let mut pool = two_at_once();
    pool.request(F(1), R(2), SOON);
    pool.ready(I(2), SOON);
    pool.ready(I(2), SOON);
    assert_eq!(pool.counts(Some(F(1))).busy, 2, "the second has what waited");
    pool.answered(I(2), R(2), SOON);
    pool.ready(I(2), SOON);
    pool.answered(I(1), R(0), SOON);
    pool.ready(I(1), SOON);
    assert_eq!(pool.request(F(1), R(3), SOON), [Action::Dispatch { instance: I(1), request: R(3) }]);
    // So the other grows old and ends.
    assert_eq!(pool.tick(Duration::from_secs(61)), [Action::Stop { instance: I(2) }]);
}

#[test]
fn an_instance_that_ends_loses_each_of_its_requests() {
    let mut pool = two_at_once();
    let lost = |request| Action::Lost { instance: I(1), request: R(request) };
    assert_eq!(pool.ended(I(1)), [lost(0), lost(1)]);
    assert!(pool.is_empty());
}

#[test]
fn an_instance_goes_on_where_one_of_its_requests_is_not_delivered() {
    let mut pool = two_at_once();
    assert_eq!(pool.undelivered(I(1), R(1), SOON), [], "it may soon ask for another");
    assert_eq!(pool.tick(Duration::from_secs(3)), [Action::Start { instance: I(2), function: F(1) }]);
    assert_eq!(pool.answered(I(1), R(0), SOON), []);
    assert_eq!(pool.ready(I(1), SOON), [Action::Dispatch { instance: I(1), request: R(1) }]);
}

#[test]
fn a_drained_instance_ends_once_it_has_answered_all() {
    let mut pool = two_at_once();
    assert_eq!(pool.drain(I(1)), []);
    assert_eq!(pool.answered(I(1), R(0), SOON), []);
    assert_eq!(pool.ready(I(1), SOON), [], "it has another request");
    assert_eq!(pool.answered(I(1), R(1), SOON), [Action::Stop { instance: I(1) }]);
    assert_eq!(pool.drain(I(1)), [], "it is ending");
}
