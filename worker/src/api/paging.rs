//! Lists in pages, as `MaxItems` and `Marker` ask for them.

use serde_json::{Value, json};

use super::Call;
use crate::base::error::ApiError;
use crate::http::{self, Answer};

/// Items of a page, at most and by default.
const MOST: usize = 50;
/// The most that `MaxItems` may ask for.
const MOST_WANTED: usize = 10_000;

/// How many items the page may have that a call asks for.
pub fn most(call: &Call) -> Result<usize, ApiError> {
    let Some(text) = call.query("MaxItems") else { return Ok(MOST) };
    let wanted = text.parse::<usize>().ok().filter(|number| (1..=MOST_WANTED).contains(number));
    let wanted = wanted.ok_or_else(|| {
        ApiError::invalid_parameter(format!("MaxItems must be a number from 1 to {MOST_WANTED}"))
    })?;
    Ok(wanted.min(MOST))
}

/// The page of a list that a call asks for. Each item has a key, by which the list is sorted; the marker is
/// the key of the last item before the page, so that no item is left out if others are deleted meanwhile.
pub fn page(call: &Call, name: &str, mut items: Vec<(String, Value)>) -> Result<Answer, ApiError> {
    let most = most(call)?;
    let after = call.query("Marker").filter(|marker| !marker.is_empty());
    items.sort_by(|(one, _), (other, _)| one.cmp(other));
    items.retain(|(key, _)| after.as_ref().is_none_or(|after| key > after));
    let more = items.len() > most;
    items.truncate(most);
    let last = items.last().map(|(key, _)| key.clone()).filter(|_| more);
    let list: Vec<Value> = items.into_iter().map(|(_, item)| item).collect();
    let mut answer = json!({ name: list });
    if let Some(last) = last {
        answer["NextMarker"] = last.into();
    }
    Ok(http::json(200, &answer))
}

/// A key by which numbers are sorted.
pub fn key_of(number: u64) -> String {
    format!("{number:020}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::error::ErrorKind;

    fn call(query: &str) -> Call {
        let request = hyper::Request::builder().uri(format!("/x?{query}")).body(()).unwrap();
        Call::of_tests(request.into_parts().0, "")
    }

    #[test]
    fn the_number_of_items_is_bounded() {
        let most = |query: &str| most(&call(query)).map_err(|error| error.kind);
        assert_eq!((most(""), most("MaxItems=3"), most("MaxItems=9999")), (Ok(50), Ok(3), Ok(50)));
        for wrong in ["MaxItems=0", "MaxItems=10001", "MaxItems=x", "MaxItems=-1"] {
            assert_eq!(most(wrong), Err(ErrorKind::InvalidParameterValue), "{wrong}");
        }
    }

    #[test]
    fn keys_of_numbers_sort_as_numbers() {
        assert!(key_of(9) < key_of(10) && key_of(10) < key_of(u64::MAX));
    }
}
