//! The pool's decisions: in single cases, and under random events.

mod at_once;
mod model;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use worker_pool::{
    Action, Capacity, Counts, FunctionId as F, InstanceId as I, Pool, Refusal, RequestId as R, Time,
};

fn capacity() -> Capacity {
    Capacity {
        concurrency: 6,
        starting: 2,
        memory_mib: 1024,
        queue: 4,
        queue_wait: Duration::from_secs(10),
        keep_alive: Duration::from_secs(60),
        processors: 1,
    }
}

#[test]
fn a_burst_starts_up_to_the_limit_and_the_rest_wait() {
    let mut pool = Pool::new(capacity());
    pool.set_function(F(1), 128);
    let starts: usize = (0..4).map(|request| pool.request(F(1), R(request), Time::ZERO).len()).sum();
    assert_eq!(starts, 2, "two start at once");
    assert_eq!(
        pool.ready(I(1), Time::ZERO),
        [
            Action::Dispatch { instance: I(1), request: R(0) },
            Action::Start { instance: I(3), function: F(1) }
        ]
    );
}

#[test]
fn a_full_queue_and_a_long_wait_refuse_with_the_reason() {
    let mut pool = Pool::new(capacity());
    pool.set_function(F(1), 128);
    pool.reserve(F(1), Some(1));
    for request in 0..4 {
        pool.request(F(1), R(request), Time::ZERO);
    }
    let refused = |request| Action::Refuse { request: R(request), refusal: Refusal::Reserved };
    assert_eq!(pool.request(F(1), R(9), Time::ZERO), [refused(9)]);
    assert_eq!(pool.tick(Duration::from_secs(10)), [refused(0), refused(1), refused(2), refused(3)]);
    pool.reserve(F(1), Some(0));
    assert_eq!(pool.request(F(1), R(10), Time::ZERO), [refused(10)]);
}

#[test]
fn uncalled_functions_cost_no_time() {
    let mut pool = Pool::new(capacity());
    (0..5000).for_each(|function| drop(pool.set_function(F(function), 128)));
    let began = Instant::now();
    (0..40).for_each(|second| assert_eq!(pool.tick(Duration::from_secs(second)), []));
    (0..5000).for_each(|function| assert_eq!(pool.counts(Some(F(function))), Counts::default()));
    // Some milliseconds; with a quadratic search, many seconds.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn an_idle_instance_makes_room_for_another_function() {
    let mut pool = Pool::new(Capacity { memory_mib: 512, ..capacity() });
    pool.set_function(F(1), 512);
    pool.set_function(F(2), 256);
    pool.request(F(1), R(0), Time::ZERO);
    pool.ready(I(1), Time::ZERO);
    pool.ready(I(1), Time::ZERO);
    assert_eq!(pool.counts(Some(F(1))).idle, 1);
    assert_eq!(
        pool.request(F(2), R(1), Time::ZERO),
        [Action::Stop { instance: I(1) }],
        "its memory is needed"
    );
    assert_eq!(
        pool.ended(I(1)),
        [Action::Start { instance: I(2), function: F(2) }],
        "and free when it has ended"
    );
}

#[test]
fn instances_end_after_the_keep_alive_time() {
    let mut pool = Pool::new(capacity());
    pool.set_function(F(1), 128);
    pool.request(F(1), R(0), Time::ZERO);
    pool.ready(I(1), Time::ZERO);
    pool.ready(I(1), Duration::from_secs(5));
    assert_eq!(pool.tick(Duration::from_secs(64)), []);
    assert_eq!(pool.tick(Duration::from_secs(65)), [Action::Stop { instance: I(1) }]);
    assert_eq!(pool.ended(I(1)), []);
    assert!(pool.is_empty());
}

#[test]
fn a_request_waits_for_an_instance_that_has_just_answered() {
    let mut pool = Pool::new(capacity());
    pool.set_function(F(1), 128);
    pool.request(F(1), R(0), Time::ZERO);
    pool.ready(I(1), Time::ZERO);
    assert_eq!(pool.answered(I(1), R(0), Duration::from_secs(1)), []);
    assert_eq!(pool.request(F(1), R(1), Duration::from_secs(1)), []);
    assert_eq!(
        pool.request(F(1), R(2), Duration::from_secs(1)),
        [Action::Start { instance: I(2), function: F(1) }]
    );
    assert_eq!(
        pool.ready(I(1), Duration::from_secs(1)),
        [Action::Dispatch { instance: I(1), request: R(1) }]
    );
    // The pool waits no longer for an instance that does not ask for work again.
    assert_eq!(pool.answered(I(1), R(1), Duration::from_secs(2)), []);
    assert_eq!(pool.request(F(1), R(3), Duration::from_secs(2)), []);
    assert_eq!(pool.tick(Duration::from_secs(3)), [Action::Start { instance: I(3), function: F(1) }]);
}

#[test]
fn one_failed_start_answers_one_request() {
    let mut pool = Pool::new(capacity());
    pool.set_function(F(1), 128);
    pool.request(F(1), R(0), Time::ZERO);
    pool.request(F(1), R(1), Time::ZERO);
    assert_eq!(pool.ended(I(1)), [Action::FailedStart { instance: I(1), request: R(0) }]);
    assert_eq!(pool.ended(I(2)), [Action::FailedStart { instance: I(2), request: R(1) }]);
    assert!(pool.is_empty(), "no request is left, so nothing starts");
}

/// As many instances of function 1 as fit, all busy, and two requests that wait.
fn full_of_one(capacity: Capacity) -> Pool {
    let mut pool = Pool::new(capacity);
    pool.set_function(F(1), 256);
    pool.set_function(F(2), 256);
    for instance in 1..=4 {
        pool.request(F(1), R(instance), Time::ZERO);
        pool.ready(I(instance), Time::ZERO);
    }
    assert_eq!((pool.counts(Some(F(1))).busy, pool.memory_mib()), (4, 1024));
    pool.request(F(1), R(5), Time::ZERO);
    pool.request(F(1), R(6), Time::ZERO);
    pool
}

#[test]
fn a_busy_instance_makes_room_for_a_function_without_one() {
    let mut pool = full_of_one(capacity());
    assert_eq!(pool.request(F(2), R(9), Duration::from_secs(1)), [], "all are busy");
    let now = Duration::from_secs(2);
    // One of them is drained, though older requests of its function wait.
    assert_eq!(pool.ready(I(1), now), [Action::Stop { instance: I(1) }]);
    assert_eq!(pool.ready(I(2), now), [Action::Dispatch { instance: I(2), request: R(5) }], "one is enough");
    assert_eq!(pool.ended(I(1)), [Action::Start { instance: I(5), function: F(2) }]);
    assert_eq!(pool.ready(I(5), now), [Action::Dispatch { instance: I(5), request: R(9) }]);
}

#[test]
fn a_busy_instance_makes_concurrency_for_a_function_without_one() {
    let mut pool = full_of_one(Capacity { concurrency: 4, memory_mib: 9999, ..capacity() });
    assert_eq!(pool.request(F(2), R(9), Duration::from_secs(1)), []);
    let now = Duration::from_secs(2);
    let actions = pool.ready(I(1), now);
    assert_eq!(actions, [Action::Stop { instance: I(1) }, Action::Start { instance: I(5), function: F(2) }]);
    assert_eq!(pool.ready(I(2), now), [Action::Dispatch { instance: I(2), request: R(5) }]);
}

#[test]
fn functions_of_which_only_one_fits_take_turns() {
    let mut pool = Pool::new(Capacity { memory_mib: 512, queue: 100, ..capacity() });
    let mut served = [0; 2];
    pool.set_function(F(0), 512);
    pool.set_function(F(1), 512);
    let mut actions: VecDeque<Action> = VecDeque::new();
    // Both have requests at any time; each takes 100 ms.
    for step in 0..300_u64 {
        let now = Duration::from_millis(100 * step);
        for function in [0, 1] {
            actions.extend(pool.request(F(function), R(2 * step + function), now));
        }
        actions.extend(pool.tick(now));
        for action in std::mem::take(&mut actions) {
            match action {
                Action::Start { instance, .. } => actions.extend(pool.ready(instance, now)),
                Action::Stop { instance } => actions.extend(pool.ended(instance)),
                Action::Dispatch { instance, request } => {
                    served[(request.0 % 2) as usize] += 1;
                    actions.extend(pool.ready(instance, now));
                }
                Action::Refuse { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }
    let (less, more) = (served[0].min(served[1]), served[0].max(served[1]));
    assert!(less >= 50 && more <= 2 * less, "{served:?} of 300 each");
}

#[test]
fn a_refusal_names_the_limiting_resource() {
    let mut pool = full_of_one(Capacity { queue: 2, ..capacity() });
    let refused = |refusal| vec![Action::Refuse { request: R(9), refusal }];
    assert_eq!(pool.request(F(1), R(9), Time::ZERO), refused(Refusal::Memory));
    let mut pool = full_of_one(Capacity { queue: 2, concurrency: 4, memory_mib: 9999, ..capacity() });
    assert_eq!(pool.request(F(1), R(9), Time::ZERO), refused(Refusal::Concurrency));
    let mut pool = Pool::new(Capacity { queue: 2, starting: 1, ..capacity() });
    pool.set_function(F(1), 128);
    pool.request(F(1), R(0), Time::ZERO);
    pool.request(F(1), R(1), Time::ZERO);
    assert_eq!(pool.request(F(1), R(9), Time::ZERO), refused(Refusal::Queue));
}

#[test]
fn versions_have_instances_of_their_own_and_share_the_reservation() {
    let mut pool = Pool::new(capacity());
    pool.set_function(F(1), 128);
    pool.add_version(F(2), F(1), 128, 1);
    pool.reserve(F(1), Some(1));
    pool.request(F(1), R(0), Time::ZERO);
    pool.ready(I(1), Time::ZERO);
    assert_eq!(pool.request(F(2), R(1), Time::ZERO), [], "the only place is busy");
    // Neither starves: the function's instance finishes its request, and the version's takes its place.
    let turn = Duration::from_secs(3);
    assert_eq!(pool.tick(turn), []);
    assert_eq!(
        pool.ready(I(1), turn),
        [Action::Stop { instance: I(1) }, Action::Start { instance: I(2), function: F(2) }]
    );
    assert_eq!(pool.ready(I(2), turn), [Action::Dispatch { instance: I(2), request: R(1) }]);
    pool.ready(I(2), turn);
    assert_eq!(
        pool.request(F(1), R(2), turn),
        [Action::Stop { instance: I(2) }, Action::Start { instance: I(3), function: F(1) }],
        "an idle one ends at once"
    );
    pool.reserve(F(1), Some(0));
    assert_eq!(
        pool.request(F(2), R(3), turn),
        [Action::Refuse { request: R(3), refusal: Refusal::Reserved }]
    );
}

#[test]
fn idle_instance_of_a_tenant_makes_room_for_another() {
    let mut pool = Pool::new(Capacity { memory_mib: 128, ..capacity() });
    pool.set_function(F(1), 128);
    (2..4).for_each(|tenant| pool.add_version(F(tenant), F(1), 128, 1));
    pool.request(F(2), R(0), Time::ZERO);
    pool.ready(I(1), Time::ZERO);
    pool.ready(I(1), Time::ZERO);
    assert_eq!(pool.functions_in_use().into_iter().collect::<Vec<_>>(), [F(2)]);
    assert_eq!(
        pool.request(F(3), R(1), Time::ZERO),
        [Action::Stop { instance: I(1) }],
        "it serves no other tenant"
    );
    assert_eq!(pool.functions_in_use().len(), 2);
    assert_eq!(pool.ended(I(1)), [Action::Start { instance: I(2), function: F(3) }]);
    assert_eq!(pool.functions_in_use().into_iter().collect::<Vec<_>>(), [F(3)]);
}

#[test]
fn many_tenants_of_one_function_delay_no_other_function() {
    let mut pool = Pool::new(capacity());
    pool.set_function(F(1), 256);
    pool.set_function(F(2), 256);
    for instance in 1..=4 {
        pool.add_version(F(10 + instance), F(1), 256, 1);
        pool.request(F(10 + instance), R(instance), Time::ZERO);
        pool.ready(I(instance), Time::ZERO);
    }
    for tenant in 20..24 {
        pool.add_version(F(tenant), F(1), 256, 1);
        assert_eq!(pool.request(F(tenant), R(tenant), Time::ZERO), [], "each has its turn");
    }
    // Older tenants wait, and none has had its turn.
    assert_eq!(pool.request(F(2), R(9), Duration::from_millis(1)), []);
    let now = Duration::from_millis(2);
    assert_eq!(pool.ready(I(1), now), [Action::Stop { instance: I(1) }]);
    assert_eq!(pool.ended(I(1)), [Action::Start { instance: I(5), function: F(2) }]);
    // The next idle one makes room for the oldest tenant.
    assert_eq!(pool.ready(I(2), now), [Action::Stop { instance: I(2) }]);
    assert_eq!(pool.ended(I(2)), [Action::Start { instance: I(6), function: F(20) }]);
}

/// Function 1 with three instances, on a processor that is saturated.
fn three_on_a_saturated_processor(queue: usize) -> Pool {
    let mut pool = Pool::new(Capacity { starting: 3, queue, ..capacity() });
    pool.set_function(F(1), 128);
    for instance in 1..=3 {
        pool.request(F(1), R(instance), Time::ZERO);
    }
    for instance in 1..=3 {
        pool.ready(I(instance), Time::ZERO);
        pool.answered(I(instance), R(instance), micros(100));
    }
    for instance in 1..=3 {
        pool.ready(I(instance), micros(100));
    }
    assert_eq!(pool.counts(Some(F(1))).idle, 3);
    pool.set_saturated(true);
    pool
}

fn micros(micros: u64) -> Time {
    Duration::from_micros(micros)
}

#[test]
fn on_saturated_processors_a_request_waits_for_a_busy_instance_while_others_are_idle() {
    let mut pool = three_on_a_saturated_processor(4);
    let given = |instance, request| [Action::Dispatch { instance: I(instance), request: R(request) }];
    assert_eq!(pool.request(F(1), R(11), micros(200)), given(3, 11));
    assert_eq!(pool.request(F(1), R(12), micros(200)), given(2, 12));
    assert_eq!(pool.request(F(1), R(13), micros(200)), [], "two calls have just begun");
    assert!(pool.holds_requests());
    assert_eq!(pool.release(micros(300)), []);
    assert_eq!(pool.answered(I(3), R(11), micros(310)), []);
    assert_eq!(pool.ready(I(3), micros(320)), given(3, 13), "it waited for a tenth of a millisecond");
    assert!(!pool.holds_requests());
    // A longer call keeps none waiting.
    assert_eq!(pool.request(F(1), R(14), micros(330)), []);
    assert_eq!(pool.release(micros(2199)), []);
    assert_eq!(pool.release(micros(2200)), given(1, 14));
}

#[test]
fn on_other_processors_no_request_waits_for_a_busy_instance() {
    let mut pool = three_on_a_saturated_processor(4);
    pool.set_saturated(false);
    (0..3).for_each(|request| assert_eq!(pool.request(F(1), R(40 + request), micros(200)).len(), 1));
    assert_eq!(pool.request(F(1), R(43), micros(200)), [Action::Start { instance: I(4), function: F(1) }]);
}

#[test]
fn no_instance_starts_for_requests_that_wait_for_busy_ones() {
    let mut pool = three_on_a_saturated_processor(100);
    assert_eq!(pool.stop(I(1)), [Action::Stop { instance: I(1) }]);
    let given = (0..9).map(|request| pool.request(F(1), R(40 + request), micros(200)).len());
    assert_eq!(given.collect::<Vec<_>>(), [1, 1, 0, 0, 0, 0, 0, 0, 0]);
    let starts = pool.release(micros(2200)).len();
    assert_eq!(starts, 3, "the calls are long: as many start as may");
}

#[test]
fn on_saturated_processors_a_request_waits_fifty_milliseconds_at_most() {
    let mut pool = three_on_a_saturated_processor(300);
    let sent = micros(1000);
    (0..300).for_each(|request| drop(pool.request(F(1), R(20 + request), sent)));
    // Two instances answer every half of a millisecond, and the third one has nothing to do.
    for round in 1..100 {
        let now = sent + micros(500 * round);
        for instance in [3, 2] {
            let request = 20 + 2 * (round - 1) + 3 - instance;
            pool.answered(I(instance), R(request), now);
            assert_eq!(
                pool.ready(I(instance), now),
                [Action::Dispatch { instance: I(instance), request: R(request + 2) }]
            );
        }
        assert_eq!((pool.release(now), pool.counts(Some(F(1))).idle), (vec![], 1));
    }
    let oldest = Action::Dispatch { instance: I(1), request: R(220) };
    assert_eq!(pool.release(sent + Duration::from_millis(50))[0], oldest);
}

#[test]
fn requests_that_wait_for_busy_instances_fill_no_queue() {
    let mut pool = three_on_a_saturated_processor(4);
    (0..2).for_each(|request| assert_eq!(pool.request(F(1), R(20 + request), micros(200)).len(), 1));
    (2..6).for_each(|request| assert_eq!(pool.request(F(1), R(20 + request), micros(200)), []));
    assert_eq!(pool.request(F(1), R(26), micros(200)), [Action::Dispatch { instance: I(1), request: R(22) }]);
}
