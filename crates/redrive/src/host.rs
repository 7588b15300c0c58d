//! The host and the user of this process, as they are recorded with leases, failures, runs and acts.

const PASSWD: &str = "/etc/passwd";

/// The user that runs this process: `$USER` or `$LOGNAME`, otherwise the name of its user id, otherwise the user id and
/// the host, as `uid:1000@host`.
#[must_use]
pub fn user() -> String {
    let named = |name: &str| std::env::var(name).ok().filter(|name| !name.is_empty());
    let uid = rustix::process::getuid().as_raw();
    let users = || std::fs::read_to_string(PASSWD).ok().and_then(|users| name_of(uid, &users));
    let number = || format!("uid:{uid}@{}", host().as_deref().unwrap_or("localhost"));
    named("USER").or_else(|| named("LOGNAME")).or_else(users).unwrap_or_else(number)
}

/// Finds the name of a user id in the text of a passwd file, whose lines are `name:password:uid:…`.
fn name_of(uid: u32, users: &str) -> Option<String> {
    let named = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    };
    users.lines().find_map(named)
}

/// The name of this host, or `None` if the system does not provide it.
pub(crate) fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name: String = name.trim().chars().filter(|c| !c.is_control()).take(64).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_id() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\n\nbroken\n+nis\n:x:7::\napp:x:1000:1000::/srv:/bin/false\n";
        assert_eq!(name_of(1000, users).as_deref(), Some("app"));
        assert_eq!(name_of(0, users).as_deref(), Some("root"));
        for uid in [1, 7, 100] {
            assert_eq!(name_of(uid, users), None);
        }
    }
}
