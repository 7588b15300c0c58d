//! Finds the function of the topmost frame in the application's own code, in stacks as seven families of languages
//! print them. It looks at a bounded part of a stack, and knows only the shapes of lines: it never opens the files.

use super::kinds::{digits, shape, skip};
use super::{head, label, tail};
use crate::limits;

/// Prefixes of functions that are not the application's own: runtimes and large frameworks.
#[rustfmt::skip]
const FOREIGN_NAMES: [&str; 23] = [
    "java.", "javax.", "jakarta.", "jdk.", "sun.", "com.sun.", "kotlin.", "kotlinx.", "scala.", "org.apache.",
    "org.springframework.", "System.", "Microsoft.", "runtime.", "runtime/", "reflect.", "testing.",
    "net/http.", "std::", "core::", "alloc::", "tokio::", "__rustc::",
];

/// Parts of paths that the application's own code does not come from.
#[rustfmt::skip]
const FOREIGN_PATHS: [&str; 16] = [
    "node_modules", "node:", "(internal/", "site-packages", "dist-packages", "/lib/python", "<frozen ",
    "/gems/", "/lib/ruby/", "<internal:", "/rustc/", "/.cargo/registry/", "/usr/local/go/src/", "/usr/lib/go",
    "/pkg/mod/", "/vendor/",
];

/// A line of a stack: the function, and the text that says where it is.
type Frame<'a> = (&'a str, &'a str);

/// Whether a frame is in the application's own code.
fn is_own((name, location): &Frame<'_>) -> bool {
    let bare = name.trim_start_matches(['<', '&', '*', '(']);
    let foreign = FOREIGN_NAMES.iter().any(|start| bare.starts_with(start));
    !foreign && !FOREIGN_PATHS.iter().any(|part| location.contains(part))
}

/// Whether a line of a stack belongs to a runtime or a library rather than to the application. Lines that are no frames,
/// such as the error itself, do not.
#[must_use]
pub fn is_foreign_frame(line: &str) -> bool {
    let line = head(line, limits::STACK_BYTES_MAX);
    let frame = python_frame(line)
        .or_else(|| at_frame(line))
        .or_else(|| ruby_frame(line))
        .or_else(|| php_frame(line));
    match frame {
        Some(frame) => !is_own(&frame),
        None => FOREIGN_PATHS.iter().any(|part| line.contains(part)),
    }
}

/// The function of the innermost frame in the application's own code.
pub(super) fn own_function(stack: &str) -> Option<String> {
    // Only Python prints the innermost frame last.
    let python = tail(stack, limits::STACK_BYTES_MAX).lines().rev().filter_map(python_frame).find(is_own);
    let stack = head(stack, limits::STACK_BYTES_MAX);
    let mut others = stack.lines().zip(stack.lines().skip(1).chain([""])).filter_map(|(line, next)| {
        let frame = at_frame(line).or_else(|| ruby_frame(line)).or_else(|| php_frame(line));
        frame.or_else(|| rust_frame(line, next)).or_else(|| go_frame(line, next))
    });
    python.or_else(|| others.find(is_own)).map(|(name, _)| label(name)).filter(|name| !name.is_empty())
}

/// `File "x.py", line 3, in func`; exception groups are drawn with bars in front.
fn python_frame(line: &str) -> Option<Frame<'_>> {
    let location = line.trim_start_matches([' ', '\t', '|', '+']).strip_prefix("File \"")?;
    let (location, name) = location.rsplit_once(", in ")?;
    location.contains("\", line ").then_some((name.trim(), location))
}

/// `at …` in JavaScript, in Java and other JVM languages, and in .NET.
fn at_frame(line: &str) -> Option<Frame<'_>> {
    let body = line.trim().strip_prefix("at ")?;
    if let Some((name, location)) = body.split_once(" (").filter(|(name, _)| !name.contains('(')) {
        let name = name.strip_prefix("async ").unwrap_or(name);
        let name = name.split_once(" [as ").map_or(name, |(name, _)| name);
        // Built-in functions have no location: "<anonymous>", "native", "index 0".
        return location.contains(':').then_some((name, body));
    }
    // Classes that the JVM generates at run time have a number for a name.
    let is_generated = |name: &str| name.contains("$$") || name.contains("$Proxy");
    let (name, location) = body.split_once('(').filter(|(name, _)| !is_generated(name))?;
    let name = name.rsplit_once('/').map_or(name, |(_module, name)| name);
    // The compiler numbers lambdas, so a new one above would rename those below.
    let unnumbered = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let name = unnumbered.strip_suffix('$').unwrap_or(name);
    // An async method of .NET is a generated class: Type.<Method>d__5.MoveNext.
    let method = name.strip_suffix(".MoveNext").and_then(|name| name.find(">d__"));
    Some((method.map_or(name, |end| head(name, end + 1)), location))
}

/// ``x.rb:3:in `func'``, with or without `from`; since Ruby 3.4 with two equal quotes.
fn ruby_frame(line: &str) -> Option<Frame<'_>> {
    let (location, name) = line.split_once(":in ")?;
    let name = name.trim().strip_prefix(['`', '\''])?;
    // The first line also contains the error.
    let name = name.split_once("': ").map_or(name, |(name, _)| name).trim_end_matches('\'');
    Some((name.rsplit_once(" in ").map_or(name, |(_block, name)| name), location))
}

/// `#0 x.php(3): Class->func('a')`.
fn php_frame(line: &str) -> Option<Frame<'_>> {
    let (index, body) = line.strip_prefix('#')?.split_once(' ')?;
    let (location, call) = body.split_once("): ")?;
    let (_, number) = location.rsplit_once('(')?;
    let is_number = |text: &str| !text.is_empty() && digits(text) == text.len();
    let (name, _) = call.split_once('(').filter(|_| is_number(index) && is_number(number))?;
    Some((name, location))
}

/// `3: crate::module::func`, with or without an address before and a hash after; the next line may give the location.
fn rust_frame<'a>(line: &'a str, next: &'a str) -> Option<Frame<'a>> {
    let (index, name) = line.trim().split_once(": ").filter(|(_, name)| name.contains("::"))?;
    index.parse::<u16>().ok()?;
    let name = name.trim();
    let name = name.split_once(" - ").filter(|_| name.starts_with("0x")).map_or(name, |(_, name)| name);
    let hashed = name.rsplit_once("::h").filter(|(_, h)| shape(h, "xxxxxxxxxxxxxxxx") == Some(h.len()));
    let name = hashed.map_or(name, |(name, _)| name).trim_end_matches("::{{closure}}");
    Some((name, if next.trim_start().starts_with("at ") { next } else { "" }))
}

/// `main.func(0x…)`, followed by a line that starts with a tab and names a Go file.
fn go_frame<'a>(line: &'a str, next: &'a str) -> Option<Frame<'a>> {
    // "created by" is not a call and so does not end with arguments.
    let is_call = line.ends_with(')') && next.starts_with('\t') && next.contains(".go:");
    let (name, _) = line.rsplit_once('(').filter(|(name, _)| is_call && name.contains('.'))?;
    // Closures are numbered; the function around them has a stable name.
    let closure = name.find(".func").filter(|at| digits(skip(name, at + 5)) > 0);
    Some((closure.map_or(name, |at| head(name, at)), next))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(stack: &str) -> Option<String> {
        own_function(stack)
    }

    #[test]
    fn the_topmost_own_function_is_found_in_each_language() {
        let python = [
            "Traceback (most recent call last):",
            "  File \"/app/main.py\", line 9, in main",
            "    run()",
            "  File \"/app/jobs.py\", line 3, in charge",
            "    get()",
            "  File \"/opt/venv/lib/python3.12/site-packages/requests/api.py\", line 5, in get",
            "E: in x",
        ]
        .join("\n");
        let java = [
            "E: x",
            "\tat java.base/java.util.List.get(List.java:1)",
            "\tat com.acme.Foo$$Lambda$14/0x08.run(Unknown Source)",
            "\tat app//com.acme.Foo.lambda$bar$0(Foo.kt:2)",
            "\tat com.acme.Main.main(Main.java:3)",
        ]
        .join("\n");
        let javascript = [
            "E: x",
            "    at JSON.parse (<anonymous>)",
            "    at get (/app/node_modules/got/i.js:1:2)",
            "    at /app/y.js:3:4",
            "    at async Object.charge [as run] (/app/x.js:1:2)",
            "    at node:internal/main:1:1",
        ]
        .join("\n");
        let go = [
            "goroutine 1 [running]:",
            "runtime/debug.Stack()",
            "\t/usr/local/go/src/runtime/debug/stack.go:24 +0x65",
            "panic({0x1, 0x2})",
            "\t/usr/local/go/src/runtime/panic.go:884",
            "github.com/acme/app.(*Server).Charge.func1(0xc000, 0x1)",
            "\t/app/main.go:12 +0x1d",
            "main.main()",
            "\t/app/main.go:1",
        ]
        .join("\n");
        let rust = [
            "   0: rust_begin_unwind",
            "             at /rustc/1/library/std/src/panicking.rs:1:5",
            "   1: core::panicking::panic_fmt",
            "   2: <alloc::boxed::Box<F> as core::ops::FnOnce<A>>::call_once",
            "   3: serde_json::from_str",
            "             at /srv/.cargo/registry/src/x/de.rs:1:1",
            "   4:     0x55d0c8 - acme::jobs::charge::{{closure}}::h0123456789abcdef",
            "             at ./src/jobs.rs:3:9",
            "   5: acme::main",
        ]
        .join("\n");
        let ruby = [
            "/usr/lib/ruby/gems/3.0/gems/x/y.rb:1:in `get'",
            "\tfrom app.rb:3:in `block (2 levels) in charge'",
            "\tfrom app.rb:9:in `<main>'",
        ]
        .join("\n");
        let dotnet = [
            "   at System.String.Parse(String s)",
            "   at Acme.Jobs.<Charge>d__5.MoveNext() in /src/J.cs:line 3",
        ]
        .join("\n");
        for (stack, wanted) in [
            (python.as_str(), "charge"),
            (java.as_str(), "com.acme.Foo.lambda$bar"),
            (javascript.as_str(), "Object.charge"),
            (go.as_str(), "github.com/acme/app.(*Server).Charge"),
            (rust.as_str(), "acme::jobs::charge"),
            (ruby.as_str(), "charge"),
            ("app.rb:3:in 'Acme::Jobs#charge'", "Acme::Jobs#charge"),
            (dotnet.as_str(), "Acme.Jobs.<Charge>"),
            ("   at Acme.Jobs.Run(String a, Int32 b)", "Acme.Jobs.Run"),
        ] {
            assert_eq!(frame(stack).as_deref(), Some(wanted), "{stack}");
        }
        for stack in [
            "",
            "no stack at all",
            "\tat java.lang.Thread.run(Thread.java:1)",
            "created by main.(*S).x\n\ta.go:1",
        ] {
            assert_eq!(frame(stack), None, "{stack}");
        }
    }
}
