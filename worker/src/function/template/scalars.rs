//! Plain scalars of YAML 1.1, which SAM's reader has: `yes` is true, `0123` is 83, `1:30` is 90.

use serde_json::{Number, Value as Json};

/// What an unquoted scalar means. Dates stay texts, as SAM's reader leaves them.
pub fn plain(text: &str) -> Json {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => return Json::Null,
        "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => return true.into(),
        "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => return false.into(),
        _ => {}
    }
    let number = whole(text).or_else(|| fraction(text)).map(Json::Number);
    number.unwrap_or_else(|| text.into())
}

fn signed(text: &str) -> (bool, &str) {
    match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    }
}

fn is_of(text: &str, digits: impl Fn(u8) -> bool) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte == b'_' || digits(byte))
}

fn whole(text: &str) -> Option<Number> {
    let (negative, digits) = signed(text);
    let magnitude = if let Some(binary) =
        digits.strip_prefix("0b").filter(|rest| is_of(rest, |b| b"01".contains(&b)))
    {
        i128::from_str_radix(&binary.replace('_', ""), 2).ok()?
    } else if let Some(hex) = digits.strip_prefix("0x").filter(|rest| is_of(rest, |b| b.is_ascii_hexdigit()))
    {
        i128::from_str_radix(&hex.replace('_', ""), 16).ok()?
    } else if digits == "0" {
        0
    } else if let Some(octal) = digits.strip_prefix('0') {
        let fits = is_of(octal, |byte| (b'0'..=b'7').contains(&byte));
        fits.then(|| i128::from_str_radix(&octal.replace('_', ""), 8).ok())??
    } else {
        sixties(digits, |first| first.bytes().next().is_some_and(|byte| (b'1'..=b'9').contains(&byte)))?
    };
    let number = if negative { -magnitude } else { magnitude };
    let small = i64::try_from(number).map(Number::from);
    small.ok().or_else(|| u64::try_from(number).map(Number::from).ok())
}

/// Digits, or several numbers to the base of sixty.
fn sixties(digits: &str, begins: impl Fn(&str) -> bool) -> Option<i128> {
    let mut parts = digits.split(':');
    let first = parts.next().filter(|first| is_of(first, |byte| byte.is_ascii_digit()) && begins(first))?;
    let mut number: i128 = first.replace('_', "").parse().ok()?;
    for part in parts {
        let below = part.parse::<u8>().ok().filter(|part| *part < 60)?;
        let fits = (1..=2).contains(&part.len()) && part.bytes().all(|byte| byte.is_ascii_digit());
        number = fits.then(|| number.checked_mul(60)?.checked_add(below.into()))??;
    }
    Some(number)
}

fn fraction(text: &str) -> Option<Number> {
    let (negative, rest) = signed(text);
    let (before, after) = rest.split_once('.')?;
    if let Some((_, last)) = before.rsplit_once(':').filter(|_| is_of(after, |byte| byte.is_ascii_digit())) {
        let seconds: f64 = format!("{last}.{after}").replace('_', "").parse().ok()?;
        let minutes = sixties(before, |_| true)? - last.parse::<i128>().ok()?;
        let number = minutes as f64 + seconds;
        return Number::from_f64(if negative { -number } else { number });
    }
    let (decimals, exponent) = match after.split_once(['e', 'E']) {
        // YAML 1.1 wants the exponent's sign.
        Some((decimals, exponent)) => {
            let digits = exponent.strip_prefix(['-', '+'])?;
            (decimals, is_of(digits, |byte| byte.is_ascii_digit()).then_some(exponent)?)
        }
        None => (after, "0"),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte == b'_' || byte.is_ascii_digit());
    let begins = |text: &str| text.bytes().next().is_some_and(|byte| byte.is_ascii_digit());
    let fits = match before.is_empty() {
        true => begins(decimals) && digits(decimals) && !text.starts_with(['-', '+']),
        false => begins(before) && digits(before) && digits(decimals),
    };
    let number: f64 =
        fits.then(|| format!("{before}.{decimals}e{exponent}").replace('_', "").parse().ok())??;
    Number::from_f64(if negative { -number } else { number })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plain_scalars_are_those_of_yaml_1_1() {
        for (text, wanted) in [
            ("012345678901", json!("012345678901")),
            ("0123", json!(83)),
            ("yes", json!(true)),
            ("on", json!(true)),
            ("y", json!("y")),
            ("3.10", json!(3.1)),
            ("1e3", json!("1e3")),
            ("1.e+3", json!(1000.0)),
            ("0x1F", json!(31)),
            ("0b11", json!(3)),
            ("0o17", json!("0o17")),
            ("12_000", json!(12000)),
            ("-5", json!(-5)),
            ("+5", json!(5)),
            ("2024-01-01", json!("2024-01-01")),
            ("", Json::Null),
            ("~", Json::Null),
            ("1:30", json!(90)),
            ("1:30.5", json!(90.5)),
            ("1:75", json!("1:75")),
            ("09:30", json!("09:30")),
            (".5", json!(0.5)),
            ("-.5", json!("-.5")),
            ("1.0", json!(1.0)),
            ("1.2.3", json!("1.2.3")),
            ("_", json!("_")),
            (".", json!(".")),
            ("-", json!("-")),
            ("18446744073709551615", json!(u64::MAX)),
            ("99999999999999999999999", json!("99999999999999999999999")),
            ("a:b.c", json!("a:b.c")),
        ] {
            assert_eq!(plain(text), wanted, "{text}");
        }
    }
}
