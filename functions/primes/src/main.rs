//! Counts the primes below a number, with the runtime that AWS publishes for Rust.

use lambda_runtime::{Error, LambdaEvent, run_concurrent, service_fn};
use serde::{Deserialize, Serialize};

/// More would take longer than a caller waits.
const MOST: usize = 50_000_000;

#[derive(Deserialize)]
struct Question {
    below: usize,
}

#[derive(Serialize)]
struct Answer {
    primes: usize,
    request: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Error> {
    run_concurrent(service_fn(count)).await
}

async fn count(event: LambdaEvent<Question>) -> Result<Answer, Error> {
    let below = event.payload.below;
    if below > MOST {
        return Err(format!("{below} is more than {MOST}").into());
    }
    let primes = sieve(below).iter().filter(|is_prime| **is_prime).count();
    Ok(Answer { primes, request: event.context.request_id })
}

/// Whether each number below this one is a prime (Eratosthenes).
fn sieve(below: usize) -> Vec<bool> {
    let mut is_prime = vec![true; below];
    is_prime.iter_mut().take(2).for_each(|small| *small = false);
    for number in 2..=below.isqrt() {
        if number < below && is_prime[number] {
            (number * number..below).step_by(number).for_each(|multiple| is_prime[multiple] = false);
        }
    }
    is_prime
}
