//! The pool's decisions: in single cases, and under random events.

mod model;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use worker_pool::{Action, Capacity, Counts, Pool, Refusal, Time};

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
    pool.set_function(1, 128);
    let starts: usize = (0..4).map(|request| pool.request(1, request, Time::ZERO).len()).sum();
    assert_eq!(starts, 2, "two start at once");
    assert_eq!(
        pool.ready(1, Time::ZERO),
        [Action::Dispatch { instance: 1, request: 0 }, Action::Start { instance: 3, function: 1 }]
    );
}

#[test]
fn a_full_queue_and_a_long_wait_refuse_with_the_reason() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    pool.reserve(1, Some(1));
    for request in 0..4 {
        pool.request(1, request, Time::ZERO);
    }
    let refused = |request| Action::Refuse { request, refusal: Refusal::Reserved };
    assert_eq!(pool.request(1, 9, Time::ZERO), [refused(9)]);
    assert_eq!(pool.tick(Duration::from_secs(10)), [refused(0), refused(1), refused(2), refused(3)]);
    pool.reserve(1, Some(0));
    assert_eq!(pool.request(1, 10, Time::ZERO), [refused(10)]);
}

#[test]
fn uncalled_functions_cost_no_time() {
    let mut pool = Pool::new(capacity());
    (0..5000).for_each(|function| drop(pool.set_function(function, 128)));
    let began = Instant::now();
    (0..40).for_each(|second| assert_eq!(pool.tick(Duration::from_secs(second)), []));
    (0..5000).for_each(|function| assert_eq!(pool.counts(Some(function)), Counts::default()));
    // Some milliseconds; with a quadratic search, many seconds.
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn an_idle_instance_makes_room_for_another_function() {
    let mut pool = Pool::new(Capacity { memory_mib: 512, ..capacity() });
    pool.set_function(1, 512);
    pool.set_function(2, 256);
    pool.request(1, 0, Time::ZERO);
    pool.ready(1, Time::ZERO);
    pool.ready(1, Time::ZERO);
    assert_eq!(pool.counts(Some(1)).idle, 1);
    assert_eq!(pool.request(2, 1, Time::ZERO), [Action::Stop { instance: 1 }], "its memory is needed");
    assert_eq!(pool.ended(1), [Action::Start { instance: 2, function: 2 }], "and free when it has ended");
}

#[test]
fn instances_end_after_the_keep_alive_time() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    pool.request(1, 0, Time::ZERO);
    pool.ready(1, Time::ZERO);
    pool.ready(1, Duration::from_secs(5));
    assert_eq!(pool.tick(Duration::from_secs(64)), []);
    assert_eq!(pool.tick(Duration::from_secs(65)), [Action::Stop { instance: 1 }]);
    assert_eq!(pool.ended(1), []);
    assert!(pool.is_empty());
}

#[test]
fn a_request_waits_for_an_instance_that_has_just_answered() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    pool.request(1, 0, Time::ZERO);
    pool.ready(1, Time::ZERO);
    assert_eq!(pool.answered(1, 0, Duration::from_secs(1)), []);
    assert_eq!(pool.request(1, 1, Duration::from_secs(1)), []);
    assert_eq!(pool.request(1, 2, Duration::from_secs(1)), [Action::Start { instance: 2, function: 1 }]);
    assert_eq!(pool.ready(1, Duration::from_secs(1)), [Action::Dispatch { instance: 1, request: 1 }]);
    // The pool waits no longer for an instance that does not ask for work again.
    assert_eq!(pool.answered(1, 1, Duration::from_secs(2)), []);
    assert_eq!(pool.request(1, 3, Duration::from_secs(2)), []);
    assert_eq!(pool.tick(Duration::from_secs(3)), [Action::Start { instance: 3, function: 1 }]);
}

#[test]
fn one_failed_start_answers_one_request() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    pool.request(1, 0, Time::ZERO);
    pool.request(1, 1, Time::ZERO);
    assert_eq!(pool.ended(1), [Action::FailedStart { instance: 1, request: 0 }]);
    assert_eq!(pool.ended(2), [Action::FailedStart { instance: 2, request: 1 }]);
    assert!(pool.is_empty(), "no request is left, so nothing starts");
}

/// As many instances of function 1 as fit, all busy, and two requests that wait.
fn full_of_one(capacity: Capacity) -> Pool {
    let mut pool = Pool::new(capacity);
    pool.set_function(1, 256);
    pool.set_function(2, 256);
    for instance in 1..=4 {
        pool.request(1, instance, Time::ZERO);
        pool.ready(instance, Time::ZERO);
    }
    assert_eq!((pool.counts(Some(1)).busy, pool.memory_mib()), (4, 1024));
    pool.request(1, 5, Time::ZERO);
    pool.request(1, 6, Time::ZERO);
    pool
}

#[test]
fn a_busy_instance_makes_room_for_a_function_without_one() {
    let mut pool = full_of_one(capacity());
    assert_eq!(pool.request(2, 9, Duration::from_secs(1)), [], "all are busy");
    let now = Duration::from_secs(2);
    // One of them is drained, though older requests of its function wait.
    assert_eq!(pool.ready(1, now), [Action::Stop { instance: 1 }]);
    assert_eq!(pool.ready(2, now), [Action::Dispatch { instance: 2, request: 5 }], "one is enough");
    assert_eq!(pool.ended(1), [Action::Start { instance: 5, function: 2 }]);
    assert_eq!(pool.ready(5, now), [Action::Dispatch { instance: 5, request: 9 }]);
}

#[test]
fn a_busy_instance_makes_concurrency_for_a_function_without_one() {
    let mut pool = full_of_one(Capacity { concurrency: 4, memory_mib: 9999, ..capacity() });
    assert_eq!(pool.request(2, 9, Duration::from_secs(1)), []);
    let now = Duration::from_secs(2);
    let actions = pool.ready(1, now);
    assert_eq!(actions, [Action::Stop { instance: 1 }, Action::Start { instance: 5, function: 2 }]);
    assert_eq!(pool.ready(2, now), [Action::Dispatch { instance: 2, request: 5 }]);
}

#[test]
fn functions_of_which_only_one_fits_take_turns() {
    let mut pool = Pool::new(Capacity { memory_mib: 512, queue: 100, ..capacity() });
    let mut served = [0; 2];
    pool.set_function(0, 512);
    pool.set_function(1, 512);
    let mut actions: VecDeque<Action> = VecDeque::new();
    // Both have requests at any time; each takes 100 ms.
    for step in 0..300_u64 {
        let now = Duration::from_millis(100 * step);
        for function in [0, 1] {
            actions.extend(pool.request(function, 2 * step + function, now));
        }
        actions.extend(pool.tick(now));
        for action in std::mem::take(&mut actions) {
            match action {
                Action::Start { instance, .. } => actions.extend(pool.ready(instance, now)),
                Action::Stop { instance } => actions.extend(pool.ended(instance)),
                Action::Dispatch { instance, request } => {
                    served[(request % 2) as usize] += 1;
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
    let refused = |refusal| vec![Action::Refuse { request: 9, refusal }];
    assert_eq!(pool.request(1, 9, Time::ZERO), refused(Refusal::Memory));
    let mut pool = full_of_one(Capacity { queue: 2, concurrency: 4, memory_mib: 9999, ..capacity() });
    assert_eq!(pool.request(1, 9, Time::ZERO), refused(Refusal::Concurrency));
    let mut pool = Pool::new(Capacity { queue: 2, starting: 1, ..capacity() });
    pool.set_function(1, 128);
    pool.request(1, 0, Time::ZERO);
    pool.request(1, 1, Time::ZERO);
    assert_eq!(pool.request(1, 9, Time::ZERO), refused(Refusal::Queue));
}

#[test]
fn versions_have_instances_of_their_own_and_share_the_reservation() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 128);
    pool.add_version(2, 1, 128, 1);
    pool.reserve(1, Some(1));
    pool.request(1, 0, Time::ZERO);
    pool.ready(1, Time::ZERO);
    assert_eq!(pool.request(2, 1, Time::ZERO), [], "the only place is busy");
    // Neither starves: the function's instance finishes its request, and the version's takes its place.
    let turn = Duration::from_secs(3);
    assert_eq!(pool.tick(turn), []);
    assert_eq!(
        pool.ready(1, turn),
        [Action::Stop { instance: 1 }, Action::Start { instance: 2, function: 2 }]
    );
    assert_eq!(pool.ready(2, turn), [Action::Dispatch { instance: 2, request: 1 }]);
    pool.ready(2, turn);
    assert_eq!(
        pool.request(1, 2, turn),
        [Action::Stop { instance: 2 }, Action::Start { instance: 3, function: 1 }],
        "an idle one ends at once"
    );
    pool.reserve(1, Some(0));
    assert_eq!(pool.request(2, 3, turn), [Action::Refuse { request: 3, refusal: Refusal::Reserved }]);
}

#[test]
fn idle_instance_of_a_tenant_makes_room_for_another() {
    let mut pool = Pool::new(Capacity { memory_mib: 128, ..capacity() });
    pool.set_function(1, 128);
    (2..4).for_each(|tenant| pool.add_version(tenant, 1, 128, 1));
    pool.request(2, 0, Time::ZERO);
    pool.ready(1, Time::ZERO);
    pool.ready(1, Time::ZERO);
    assert_eq!(pool.functions_in_use().into_iter().collect::<Vec<_>>(), [2]);
    assert_eq!(pool.request(3, 1, Time::ZERO), [Action::Stop { instance: 1 }], "it serves no other tenant");
    assert_eq!(pool.functions_in_use().len(), 2);
    assert_eq!(pool.ended(1), [Action::Start { instance: 2, function: 3 }]);
    assert_eq!(pool.functions_in_use().into_iter().collect::<Vec<_>>(), [3]);
}

#[test]
fn many_tenants_of_one_function_delay_no_other_function() {
    let mut pool = Pool::new(capacity());
    pool.set_function(1, 256);
    pool.set_function(2, 256);
    for instance in 1..=4 {
        pool.add_version(10 + instance, 1, 256, 1);
        pool.request(10 + instance, instance, Time::ZERO);
        pool.ready(instance, Time::ZERO);
    }
    for tenant in 20..24 {
        pool.add_version(tenant, 1, 256, 1);
        assert_eq!(pool.request(tenant, tenant, Time::ZERO), [], "each has its turn");
    }
    // Older tenants wait, and none has had its turn.
    assert_eq!(pool.request(2, 9, Duration::from_millis(1)), []);
    let now = Duration::from_millis(2);
    assert_eq!(pool.ready(1, now), [Action::Stop { instance: 1 }]);
    assert_eq!(pool.ended(1), [Action::Start { instance: 5, function: 2 }]);
    // The next idle one makes room for the oldest tenant.
    assert_eq!(pool.ready(2, now), [Action::Stop { instance: 2 }]);
    assert_eq!(pool.ended(2), [Action::Start { instance: 6, function: 20 }]);
}

/// Function 1 with three instances, on a processor that is saturated.
fn three_on_a_saturated_processor(queue: usize) -> Pool {
    let mut pool = Pool::new(Capacity { starting: 3, queue, ..capacity() });
    pool.set_function(1, 128);
    for instance in 1..=3 {
        pool.request(1, instance, Time::ZERO);
    }
    for instance in 1..=3 {
        pool.ready(instance, Time::ZERO);
        pool.answered(instance, instance, micros(100));
    }
    for instance in 1..=3 {
        pool.ready(instance, micros(100));
    }
    assert_eq!(pool.counts(Some(1)).idle, 3);
    pool.set_saturated(true);
    pool
}

fn micros(micros: u64) -> Time {
    Duration::from_micros(micros)
}

#[test]
fn on_saturated_processors_a_request_waits_for_a_busy_instance_while_others_are_idle() {
    let mut pool = three_on_a_saturated_processor(4);
    let given = |instance, request| [Action::Dispatch { instance, request }];
    assert_eq!(pool.request(1, 11, micros(200)), given(3, 11));
    assert_eq!(pool.request(1, 12, micros(200)), given(2, 12));
    assert_eq!(pool.request(1, 13, micros(200)), [], "two calls have just begun");
    assert!(pool.holds_requests());
    assert_eq!(pool.release(micros(300)), []);
    assert_eq!(pool.answered(3, 11, micros(310)), []);
    assert_eq!(pool.ready(3, micros(320)), given(3, 13), "it waited for a tenth of a millisecond");
    assert!(!pool.holds_requests());
    // A longer call keeps none waiting.
    assert_eq!(pool.request(1, 14, micros(330)), []);
    assert_eq!(pool.release(micros(2199)), []);
    assert_eq!(pool.release(micros(2200)), given(1, 14));
}

#[test]
fn on_other_processors_no_request_waits_for_a_busy_instance() {
    let mut pool = three_on_a_saturated_processor(4);
    pool.set_saturated(false);
    (0..3).for_each(|request| assert_eq!(pool.request(1, 40 + request, micros(200)).len(), 1));
    assert_eq!(pool.request(1, 43, micros(200)), [Action::Start { instance: 4, function: 1 }]);
}

#[test]
fn no_instance_starts_for_requests_that_wait_for_busy_ones() {
    let mut pool = three_on_a_saturated_processor(100);
    assert_eq!(pool.stop(1), [Action::Stop { instance: 1 }]);
    let given = (0..9).map(|request| pool.request(1, 40 + request, micros(200)).len());
    assert_eq!(given.collect::<Vec<_>>(), [1, 1, 0, 0, 0, 0, 0, 0, 0]);
    let starts = pool.release(micros(2200)).len();
    assert_eq!(starts, 3, "the calls are long: as many start as may");
}

#[test]
fn on_saturated_processors_a_request_waits_fifty_milliseconds_at_most() {
    let mut pool = three_on_a_saturated_processor(300);
    let sent = micros(1000);
    (0..300).for_each(|request| drop(pool.request(1, 20 + request, sent)));
    // Two instances answer every half of a millisecond, and the third one has nothing to do.
    for round in 1..100 {
        let now = sent + micros(500 * round);
        for instance in [3, 2] {
            let request = 20 + 2 * (round - 1) + 3 - instance;
            pool.answered(instance, request, now);
            assert_eq!(pool.ready(instance, now), [Action::Dispatch { instance, request: request + 2 }]);
        }
        assert_eq!((pool.release(now), pool.counts(Some(1)).idle), (vec![], 1));
    }
    let oldest = Action::Dispatch { instance: 1, request: 220 };
    assert_eq!(pool.release(sent + Duration::from_millis(50))[0], oldest);
}

#[test]
fn requests_that_wait_for_busy_instances_fill_no_queue() {
    let mut pool = three_on_a_saturated_processor(4);
    (0..2).for_each(|request| assert_eq!(pool.request(1, 20 + request, micros(200)).len(), 1));
    (2..6).for_each(|request| assert_eq!(pool.request(1, 20 + request, micros(200)), []));
    assert_eq!(pool.request(1, 26, micros(200)), [Action::Dispatch { instance: 1, request: 22 }]);
}

const SOON: Time = Duration::from_millis(1);

/// A pool whose function 1 has an instance that may have two requests at once and has asked for both.
fn two_at_once() -> Pool {
    let mut pool = Pool::new(capacity());
    pool.set_function_at_once(1, 128, 2);
    pool.request(1, 0, Time::ZERO);
    assert_eq!(pool.request(1, 1, Time::ZERO), [], "the instance that starts is enough for both");
    assert_eq!(pool.ready(1, SOON), [Action::Dispatch { instance: 1, request: 0 }]);
    assert_eq!(pool.ready(1, SOON), [Action::Dispatch { instance: 1, request: 1 }]);
    pool
}

#[test]
fn an_instance_serves_as_many_requests_at_once_as_its_runtime_asks_for() {
    let mut pool = two_at_once();
    assert_eq!((pool.counts(Some(1)).busy, pool.counts(Some(1)).running), (1, 2));
    assert_eq!(
        pool.request(1, 2, SOON),
        [Action::Start { instance: 2, function: 1 }],
        "it has no place left"
    );
    assert_eq!(pool.answered(1, 0, SOON), []);
    assert_eq!(pool.ready(1, SOON), [Action::Dispatch { instance: 1, request: 2 }], "the first that asks");
    assert_eq!(pool.ready(2, SOON), []);
    assert_eq!(pool.request(1, 3, SOON), [Action::Dispatch { instance: 2, request: 3 }]);
}

#[test]
fn requests_of_an_instance_stay_within_its_figure_whatever_it_asks_for() {
    let mut pool = two_at_once();
    // As a runtime does that asks again before it has answered.
    pool.ready(1, SOON);
    pool.ready(1, SOON);
    assert_eq!(pool.request(1, 2, SOON), [Action::Start { instance: 2, function: 1 }]);
    assert_eq!(pool.answered(1, 1, SOON), [Action::Dispatch { instance: 1, request: 2 }]);
}

#[test]
fn of_two_instances_the_one_with_most_requests_is_given_the_next() {
    let mut pool = two_at_once();
    pool.request(1, 2, SOON);
    pool.ready(2, SOON);
    pool.ready(2, SOON);
    assert_eq!(pool.counts(Some(1)).busy, 2, "the second has what waited");
    pool.answered(2, 2, SOON);
    pool.ready(2, SOON);
    pool.answered(1, 0, SOON);
    pool.ready(1, SOON);
    assert_eq!(pool.request(1, 3, SOON), [Action::Dispatch { instance: 1, request: 3 }]);
    // So the other grows old and ends.
    assert_eq!(pool.tick(Duration::from_secs(61)), [Action::Stop { instance: 2 }]);
}

#[test]
fn an_instance_that_ends_loses_each_of_its_requests() {
    let mut pool = two_at_once();
    let lost = |request| Action::Lost { instance: 1, request };
    assert_eq!(pool.ended(1), [lost(0), lost(1)]);
    assert!(pool.is_empty());
}

#[test]
fn an_instance_goes_on_where_one_of_its_requests_is_not_delivered() {
    let mut pool = two_at_once();
    assert_eq!(pool.undelivered(1, 1, SOON), [], "it may soon ask for another");
    assert_eq!(pool.tick(Duration::from_secs(3)), [Action::Start { instance: 2, function: 1 }]);
    assert_eq!(pool.answered(1, 0, SOON), []);
    assert_eq!(pool.ready(1, SOON), [Action::Dispatch { instance: 1, request: 1 }]);
}

#[test]
fn a_drained_instance_ends_once_it_has_answered_all() {
    let mut pool = two_at_once();
    assert_eq!(pool.drain(1), []);
    assert_eq!(pool.answered(1, 0, SOON), []);
    assert_eq!(pool.ready(1, SOON), [], "it has another request");
    assert_eq!(pool.answered(1, 1, SOON), [Action::Stop { instance: 1 }]);
    assert_eq!(pool.drain(1), [], "it is ending");
}
