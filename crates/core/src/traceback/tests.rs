//! Samples of what each language prints, with noise around them, and texts that are not tracebacks.

use super::*;
use proptest::prelude::*;

fn found(text: &str) -> (String, String, Vec<String>) {
    let found = last_traceback(text).unwrap_or_else(|| panic!("no traceback in {text}"));
    assert!(text.contains(&found.stack), "{}", found.stack);
    (found.error_type, found.message, found.causes)
}

fn check(text: &str, error_type: &str, message: &str, causes: &[&str]) {
    for text in [text.to_owned(), format!("starting\nerror: 3 left\n{text}\ncleaning up\n")] {
        let wanted =
            (error_type.to_owned(), message.to_owned(), causes.iter().map(|c| (*c).to_owned()).collect());
        assert_eq!(found(&text), wanted, "{text}");
    }
}

const PYTHON: &str = r#"Traceback (most recent call last):
  File "/app/jobs.py", line 3, in charge
    return int(text)
           ^^^^^^^^^
ValueError: invalid literal for int() with base 10: 'x'

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
  File "/app/main.py", line 9, in <module>
    charge("x")
  File "/app/jobs.py", line 5, in charge
    raise shop.ChargeFailed("no: amount") from error
shop.ChargeFailed: no: amount"#;

const JAVA: &str = "Exception in thread \"main\" com.acme.ChargeFailed: no amount
\tat com.acme.Jobs.charge(Jobs.java:7)
\tat com.acme.Main.main(Main.java:3)
Caused by: java.lang.NumberFormatException: For input string: \"x\"
\tat java.base/java.lang.Integer.parseInt(Integer.java:661)
\tat com.acme.Jobs.charge(Jobs.java:5)
\t... 1 more
Caused by: java.io.IOException
\tat com.acme.Jobs.read(Jobs.java:2)
\t... 2 more";

const NODE: &str = "/app/jobs.js:3
  throw new ChargeFailed('no amount', { cause: error });
  ^

ChargeFailed: no amount
    at charge (/app/jobs.js:3:9)
    at async Object.<anonymous> (/app/main.js:7:1)
    at node:internal/main/run_main_module:28:49 {
  code: 'E_CHARGE',
  [cause]: SyntaxError: Unexpected token x
      at JSON.parse (<anonymous>)
      at charge (/app/jobs.js:2:8)
}

Node.js v20.0.0";

const DOTNET: &str = "Unhandled exception. System.InvalidOperationException: no amount
 ---> System.FormatException: Input string was not in a correct format.
   at System.Number.ThrowFormatException(String value)
   at Acme.Jobs.Parse(String text) in /src/Jobs.cs:line 3
   --- End of inner exception stack trace ---
   at Acme.Jobs.Charge(String text) in /src/Jobs.cs:line 9";

const GO: &str = "panic: no amount [recovered]
\tpanic: runtime error: index out of range [5] with length 3

goroutine 1 [running]:
main.charge({0xc000, 0x1})
\t/app/main.go:7 +0x1d
main.main()
\t/app/main.go:3 +0x20
exit status 2";

const RUBY: &str = "jobs.rb:5:in 'Jobs#charge': no (amount) (Shop::ChargeFailed)
\tfrom main.rb:2:in '<main>'
jobs.rb:3:in 'Kernel#Integer': invalid value for Integer(): \"x\" (ArgumentError)
\tfrom jobs.rb:3:in 'Jobs#charge'
\tfrom main.rb:2:in '<main>'";

const RUST: &str = "thread 'main' (412) panicked at src/jobs.rs:3:5:
assertion `left == right` failed
  left: 1
 right: 2
stack backtrace:
   0: __rustc::rust_begin_unwind
             at /rustc/1/library/std/src/panicking.rs:697:5
   1: jobs::charge
             at ./src/jobs.rs:3:5
note: run with `RUST_BACKTRACE=full` for a verbose backtrace.";

const PHP: &str = "PHP Fatal error:  Uncaught ValueError: not a number in /app/jobs.php:3
Stack trace:
#0 /app/jobs.php(7): Shop\\Jobs->parse('x')
#1 {main}

Next Shop\\ChargeFailed: no amount in /app/jobs.php:9
Stack trace:
#0 /app/main.php(2): Shop\\Jobs->charge('x')
#1 {main}
  thrown in /app/jobs.php on line 9";

#[test]
fn type_message_and_causes_are_found_in_each_language() {
    check(
        PYTHON,
        "shop.ChargeFailed",
        "no: amount",
        &["ValueError: invalid literal for int() with base 10: 'x'"],
    );
    check(
        JAVA,
        "com.acme.ChargeFailed",
        "no amount",
        &["java.lang.NumberFormatException: For input string: \"x\"", "java.io.IOException"],
    );
    check(NODE, "ChargeFailed", "no amount", &["SyntaxError: Unexpected token x"]);
    check(
        DOTNET,
        "System.InvalidOperationException",
        "no amount",
        &["System.FormatException: Input string was not in a correct format."],
    );
    check(GO, "runtime.Error", "index out of range [5] with length 3", &["panic: no amount"]);
    check(RUBY, "Shop::ChargeFailed", "no (amount)", &["ArgumentError: invalid value for Integer(): \"x\""]);
    check(RUST, "Panic", "assertion `left == right` failed\n  left: 1\n right: 2", &[]);
    check(PHP, "Shop\\ChargeFailed", "no amount", &["ValueError: not a number"]);
}

#[test]
fn other_forms_are_known_too() {
    check(
        "thread 'main' panicked at src/main.rs:2:5:\nboom\nnote: run with `RUST_BACKTRACE=1`",
        "Panic",
        "boom",
        &[],
    );
    check("thread 'worker' panicked at 'boom', src/main.rs:2:5", "Panic", "boom", &[]);
    check(
        "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [chan receive]:\nmain.main()\n\t/app/main.go:3 +0x20",
        "fatal error",
        "all goroutines are asleep - deadlock!",
        &[],
    );
    check(
        "Traceback (most recent call last):\n  File \"a.py\", line 1, in <module>\nKeyboardInterrupt",
        "KeyboardInterrupt",
        "",
        &[],
    );
    check(
        "  File \"a.py\", line 1\n    def\n       ^\nSyntaxError: invalid syntax",
        "SyntaxError",
        "invalid syntax",
        &[],
    );
    check(
        "TypeError [ERR_INVALID_ARG_TYPE]: two\nlines\n    at f (/app/x.js:1:2)",
        "TypeError",
        "two\nlines",
        &[],
    );
    check(
        "Uncaught ReferenceError: x is not defined\n    at file:///app/x.mjs:1:1",
        "ReferenceError",
        "x is not defined",
        &[],
    );
    check(
        "app.rb:3:in `charge': undefined method `x' for nil (NoMethodError)\n\n  y.x\n   ^^\n\tfrom app.rb:9:in `<main>'",
        "NoMethodError",
        "undefined method `x' for nil",
        &[],
    );
    let two = format!("{JAVA}\nretrying\n{PYTHON}");
    assert_eq!(found(&two).0, "shop.ChargeFailed", "the last one counts");
}

#[test]
fn frames_of_a_traceback_give_the_same_signature_as_those_of_a_library() {
    use crate::failure::ErrorInfo;
    use crate::signature::Signature;
    for (text, frame) in [
        (PYTHON, "charge"),
        (JAVA, "com.acme.Jobs.charge"),
        (NODE, "charge"),
        (DOTNET, "Acme.Jobs.Parse"),
        (GO, "main.charge"),
        (RUBY, "Jobs#charge"),
        (RUST, "jobs::charge"),
        (PHP, "Shop\\Jobs->parse"),
    ] {
        let stack = last_traceback(text).map(|found| found.stack);
        let error = ErrorInfo { stack, ..ErrorInfo::default() };
        assert_eq!(Signature::of(&error).frame.as_deref(), Some(frame), "{text}");
    }
}

#[test]
fn ordinary_output_is_not_a_traceback() {
    for text in [
        "",
        "ERROR: could not connect to db:5432",
        "jobs: ValueError: not a traceback",
        "Traceback (most recent call last):",
        "look at this\n  at the door (left)\n",
        "Error: no such file or directory (os error 2)",
        "panic: at the disco",
        "goroutine 1 [running]:\nmain.main()",
        "#0 /app/x.php(3): f()",
        "warning: unused variable in main.rb:3:in 'x' (yes)",
        "thread 'main' has overflowed its stack",
    ] {
        assert_eq!(last_traceback(text), None, "{text}");
    }
}

#[test]
fn a_long_text_is_read_within_limits() {
    let noise = "  File \"a.py\", line 1, in f\n    at x (y:1)\nE: x\n".repeat(20_000);
    let text = format!("{noise}\n{PYTHON}");
    assert_eq!(found(&text).0, "shop.ChargeFailed");
    let deep = format!(
        "Traceback (most recent call last):\n{}E: x",
        "  File \"a.py\", line 1, in f\n".repeat(2_000)
    );
    assert!(last_traceback(&deep).unwrap().stack.len() <= limits::STACK_BYTES_MAX);
}

proptest! {
    #[test]
    fn no_text_causes_a_panic(
        input in "(\\PC|\n|\t|  |at |f\\(x:1\\)|E: m|Traceback \\(most recent call last\\):|Caused by: |---> |panic: |goroutine 1 \\[x\\]:|thread 'a' panicked at |stack backtrace:|Fatal error: Uncaught |Next |#0 |x.rb:1:in 'f': m \\(E\\)|from | in ){0,60}",
    ) {
        if let Some(found) = last_traceback(&input) {
            prop_assert!(!found.error_type.is_empty());
            prop_assert!(found.stack.lines().all(|line| input.contains(line)));
        }
    }
}
