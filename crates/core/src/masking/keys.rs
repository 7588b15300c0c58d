//! Which field names mean that the value is secret. Names are compared without case and without separators, so
//! `accessToken`, `ACCESS_TOKEN` and `access-token` are the same.

/// When the value of a secret name is secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Secrecy {
    /// Always.
    Always,
    /// Unless it is an ordinary word in a sentence, such as `invalid token: expired`.
    UnlessProse,
}

/// A pattern for a normalised name.
#[derive(Clone, Debug, PartialEq, Eq)]
enum KeyPattern {
    Is(String),
    Starts(String),
    Ends(String),
    Has(String),
    /// Several parts in this order, anchored where there is no star.
    Parts {
        parts: Vec<String>,
        start: bool,
        end: bool,
    },
}

impl KeyPattern {
    fn parse(pattern: &str) -> Result<Self, String> {
        let plain: String = pattern
            .chars()
            .filter(|c| c.is_alphanumeric() || *c == '*')
            .flat_map(char::to_lowercase)
            .collect();
        if !plain.contains(|c: char| c != '*') {
            return Err(format!("{pattern:?} names no field; give a name such as password or *_token"));
        }
        let (start, end) = (!plain.starts_with('*'), !plain.ends_with('*'));
        let parts: Vec<String> = plain.split('*').filter(|p| !p.is_empty()).map(str::to_owned).collect();
        Ok(match (parts.as_slice(), start, end) {
            ([only], true, true) => Self::Is(only.clone()),
            ([only], true, false) => Self::Starts(only.clone()),
            ([only], false, true) => Self::Ends(only.clone()),
            ([only], false, false) => Self::Has(only.clone()),
            (_, start, end) => Self::Parts { parts, start, end },
        })
    }

    fn matches(&self, name: &str) -> bool {
        match self {
            Self::Is(text) => name == text,
            Self::Starts(text) => name.starts_with(text.as_str()),
            Self::Ends(text) => name.ends_with(text.as_str()),
            Self::Has(text) => name.contains(text.as_str()),
            Self::Parts { parts, start, end } => {
                let mut rest = name;
                for (n, part) in parts.iter().enumerate() {
                    let last = n + 1 == parts.len();
                    let found = match (n == 0 && *start, last && *end) {
                        (true, _) => rest.starts_with(part.as_str()).then_some(0),
                        (false, true) => rest.ends_with(part.as_str()).then(|| rest.len() - part.len()),
                        (false, false) => rest.find(part.as_str()),
                    };
                    let Some(at) = found else { return false };
                    rest = rest.get(at + part.len()..).unwrap_or_default();
                }
                true
            }
        }
    }
}

/// The names that are secret, and the exceptions.
#[derive(Clone, Debug, Default)]
pub(super) struct Keys {
    hidden: Vec<(KeyPattern, Secrecy)>,
    shown: Vec<KeyPattern>,
}

/// Names whose values are always secret.
const ALWAYS: &[&str] = &[
    "*password*",
    "*passwd*",
    "*passphrase*",
    "pwd",
    "*_pwd",
    "*secret*",
    "*authorization*",
    "*cookie*",
    "*credential*",
    "*apikey*",
    "*accesskey*",
    "*privatekey*",
    "*signingkey*",
    "*encryptionkey*",
    "*masterkey*",
    "*sessionid",
    "*sessionkey",
    "*csrf*",
    "*xsrf*",
    "*ssn",
    "ssnumber",
    "*socialsecurity*",
    "*cardnumber*",
    "*creditcard*",
    "*debitcard*",
    "*cardno",
    "cvv*",
    "cvc*",
    "*iban",
    "*accountnumber",
    "*connectionstring*",
    "*amzsignature",
    "*googsignature",
    "*passport*",
    "*taxid",
    "*dateofbirth",
    "*birthdate",
];

/// Names that are also ordinary words.
const UNLESS_PROSE: &[&str] = &[
    "*token", "*tokens", "auth", "*xauth*", "session", "sessions", "card", "cards", "pan", "pin", "otp",
    "*email*", "*phone*", "mobile", "dob", "jwt", "bearer", "dsn", "*_dsn",
];

/// Names that look like the ones above but count things.
const SHOWN: &[&str] = &[
    "maxtokens",
    "*maxtokens",
    "mintokens",
    "prompttokens",
    "completiontokens",
    "totaltokens",
    "inputtokens",
    "outputtokens",
    "cachedtokens",
    "reasoningtokens",
    "usedtokens",
    "counttokens",
    "numtokens",
    "ntokens",
];

impl Keys {
    /// The built-in names.
    pub(super) fn builtin() -> Self {
        let mut keys = Self::default();
        // A test checks that all entries of the lists are valid patterns.
        let patterns =
            |list: &[&str]| list.iter().filter_map(|p| KeyPattern::parse(p).ok()).collect::<Vec<_>>();
        keys.hidden.extend(patterns(ALWAYS).into_iter().map(|pattern| (pattern, Secrecy::Always)));
        keys.hidden.extend(patterns(UNLESS_PROSE).into_iter().map(|pattern| (pattern, Secrecy::UnlessProse)));
        keys.shown = patterns(SHOWN);
        keys
    }

    /// Adds a name whose values are secret.
    pub(super) fn hide(&mut self, pattern: &str) -> Result<(), String> {
        self.hidden.insert(0, (KeyPattern::parse(pattern)?, Secrecy::Always));
        Ok(())
    }

    /// Adds a name whose values are shown.
    pub(super) fn show(&mut self, pattern: &str) -> Result<(), String> {
        self.shown.push(KeyPattern::parse(pattern)?);
        Ok(())
    }

    /// When a value with this name is secret, or `None` if it is not.
    pub(super) fn hides(&self, key: &str) -> Option<Secrecy> {
        // A name that is itself masked says nothing.
        if key.is_empty() || key.contains("[masked") {
            return None;
        }
        let name: String = key.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect();
        let (_, secrecy) = self.hidden.iter().find(|(pattern, _)| pattern.matches(&name))?;
        (!self.shown.iter().any(|pattern| pattern.matches(&name))).then_some(*secrecy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_builtin_name_is_a_valid_pattern() {
        for list in [ALWAYS, UNLESS_PROSE, SHOWN] {
            assert!(list.iter().all(|pattern| KeyPattern::parse(pattern).is_ok()));
        }
    }

    #[test]
    fn names_are_compared_without_case_and_separators() {
        let keys = Keys::builtin();
        for name in [
            "password",
            "PASSWORD",
            "userPassword",
            "user_password_2",
            "db.passwd",
            "X-Api-Key",
            "apiKey",
            "AccessToken",
            "refresh-token",
            "token",
            "client_secret",
            "Authorization",
            "Proxy-Authorization",
            "Set-Cookie",
            "cookie",
            "ssn",
            "customer_ssn",
            "card",
            "cardNumber",
            "card-number",
            "iban",
            "IBAN",
            "email",
            "e-mail",
            "Customer E-Mail",
            "phoneNumber",
            "privateKey",
            "aws_secret_access_key",
            "cvv2",
            "access_tokens",
            "JWT",
        ] {
            assert!(keys.hides(name).is_some(), "{name}");
        }
        for name in [
            "className",
            "max_tokens",
            "llm.maxTokens",
            "prompt_tokens",
            "key",
            "id",
            "passenger",
            "author",
            "discard",
            "cardinality",
            "panel",
            "spin",
            "",
            "___",
            "kind",
        ] {
            assert_eq!(keys.hides(name), None, "{name}");
        }
    }

    #[test]
    fn an_operator_adds_and_removes_names() {
        let mut keys = Keys::builtin();
        keys.hide("customer_*_no").unwrap();
        keys.hide("*internal*note*").unwrap();
        keys.show("email_count").unwrap();
        assert_eq!(keys.hides("customerTaxNo"), Some(Secrecy::Always));
        assert_eq!(keys.hides("customerNot"), None);
        assert!(keys.hides("my-internal-x-note-2").is_some());
        assert_eq!(keys.hides("EmailCount"), None);
        assert!(keys.hides("email").is_some());
        for bad in ["", "*", "**", "_*-"] {
            assert!(keys.hide(bad).unwrap_err().contains("names no field"), "{bad}");
        }
    }
}
