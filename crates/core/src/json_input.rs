//! Reads JSON that people and programs send. Errors say what is wrong and where, suggest the nearest known name, and never
//! quote values, which may be payloads.

use serde::de::DeserializeOwned;

/// Parses a JSON object of a known type.
///
/// # Errors
/// What is wrong, and where.
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, String> {
    serde_json::from_str(text(bytes)?).map_err(|error| describe(&error))
}

/// Refuses anything but a JSON object before an error could quote it.
///
/// # Errors
/// What it is instead.
pub fn object(bytes: &[u8]) -> Result<(), String> {
    text(bytes).map(drop)
}

/// The text of a JSON object.
fn text(bytes: &[u8]) -> Result<&str, String> {
    let text = std::str::from_utf8(bytes)
        .map_err(|error| format!("not valid UTF-8 at byte {}", error.valid_up_to() + 1))?;
    if bytes.trim_ascii_start().first() != Some(&b'{') {
        return Err("not a JSON object".into());
    }
    Ok(text)
}

/// Describes what is wrong with JSON, without its content.
#[must_use]
pub fn describe(error: &serde_json::Error) -> String {
    let column = error.column();
    match error.classify() {
        serde_json::error::Category::Eof => format!("the JSON ends too early, at column {column}"),
        serde_json::error::Category::Syntax | serde_json::error::Category::Io => {
            format!("not valid JSON at column {column}")
        }
        serde_json::error::Category::Data => {
            let text = error.to_string();
            let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(what, _)| what);
            let expected = text.starts_with("invalid").then(|| text.rsplit_once(", expected ")).flatten();
            match expected {
                Some((_, wanted)) => format!("a value is not {wanted}, at column {column}"),
                None => explain(text),
            }
        }
    }
}

/// Improves an error message of serde: suggests the nearest known name for an unknown one, and shows an example of a
/// duration.
#[must_use]
pub fn explain(message: &str) -> String {
    if message.contains("untagged enum Written") {
        return "not a duration such as 500ms, 30s, 15m, 2h or 7d".to_owned();
    }
    let first = message.lines().next().unwrap_or(message);
    let unknown = first.starts_with("unknown field") || first.starts_with("unknown variant");
    let mut names = first.split('`').skip(1).step_by(2);
    let (true, Some(wrong)) = (unknown, names.next()) else { return first.to_owned() };
    let kind = if first.starts_with("unknown field") { "key" } else { "word" };
    let known: Vec<&str> = names.collect();
    match nearest(wrong, &known) {
        Some(near) => format!("unknown {kind} `{wrong}`; did you mean `{near}`?"),
        None => format!("unknown {kind} `{wrong}`; known are {}", known.join(", ")),
    }
}

/// The known word that the user probably meant.
#[must_use]
pub fn nearest<'a>(wrong: &str, known: &[&'a str]) -> Option<&'a str> {
    let distance = |word: &str| strsim::damerau_levenshtein(wrong, word);
    let best = known.iter().copied().min_by_key(|word| distance(word))?;
    (distance(best) <= 1 + wrong.chars().count() / 3).then_some(best)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_describe_the_problem_without_quoting_values() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Shape {
            #[serde(rename = "queue")]
            _queue: Option<u32>,
        }
        for (line, expected) in [
            (b"\"secret\"".as_slice(), "not a JSON object"),
            (b"secret", "not a JSON object"),
            (b"{\"queue\": 1, \"x\": \xff}", "not valid UTF-8 at byte 19"),
            (b"{\"queue\": 1", "ends too early"),
            (b"{\"queue\": secret}", "not valid JSON at column 11"),
            (b"{\"queue\": \"secret\"}", "a value is not u32, at column 18"),
            (b"{\"quue\": 1}", "unknown key `quue`; did you mean `queue`?"),
            (b"{\"queue\": 1} secret", "not valid JSON"),
            (b"{\"queue\": 1, \"queue\": 2}", "duplicate field `queue`"),
        ] {
            let error = parse::<Shape>(line).unwrap_err();
            assert!(error.contains(expected) && !error.contains("secret"), "{error}");
        }
    }
}
