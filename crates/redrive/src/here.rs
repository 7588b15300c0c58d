//! Where and as whom this process runs, as it is kept with leases, failures, runs and acts. Only says it; nothing is
//! decided here.

/// The users of this machine.
const USERS: &str = "/etc/passwd";

/// Who runs this process: what the environment says, then the name of its user, then the number of its user and the
/// machine, as `uid:1000@host`.
#[must_use]
pub fn user() -> String {
    let named = |name: &str| std::env::var(name).ok().filter(|name| !name.is_empty());
    let uid = rustix::process::getuid().as_raw();
    let users = || std::fs::read_to_string(USERS).ok().and_then(|users| name_of(uid, &users));
    let number = || format!("uid:{uid}@{}", host().as_deref().unwrap_or("localhost"));
    named("USER").or_else(|| named("LOGNAME")).or_else(users).unwrap_or_else(number)
}

/// The name of a user in the lines of a file of users: name, password, number and more, with colons between them.
fn name_of(uid: u32, users: &str) -> Option<String> {
    let named = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next().filter(|name| !name.is_empty())?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    };
    users.lines().find_map(named)
}

/// The name of this machine; nothing where the system does not say.
pub(crate) fn host() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?;
    let name: String = name.trim().chars().filter(|c| !c.is_control()).take(64).collect();
    (!name.is_empty()).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_number() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\n\nbroken\n+nis\n:x:7::\napp:x:1000:1000::/srv:/bin/false\n";
        assert_eq!(name_of(1000, users).as_deref(), Some("app"));
        assert_eq!(name_of(0, users).as_deref(), Some("root"));
        for uid in [1, 7, 100] {
            assert_eq!(name_of(uid, users), None);
        }
    }
}
