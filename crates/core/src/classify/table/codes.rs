//! The table, last part: numbers. A number has a meaning only within a scheme, which follows from the code field, the
//! words before it in the text, or the name of the service.

use super::super::tokens::{Kind, Part, Words};
use super::{Hit, Reason, Strength};
use crate::failure::Category::{Persistent as P, Resource as R, Transient as T};
use crate::failure::Route::{Agent, Corruption, Network, System, Timeout};
use crate::failure::{Category, ErrorInfo, Route};
use crate::signature::head;

/// What a number is a code of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    Smtp,
    Grpc,
    SqlState,
    MySql,
    Oracle,
    SqlServer,
    Mongo,
    Exit,
    Signal,
    Errno,
    Windows,
    Curl,
    WebSocket,
}

impl Scheme {
    const fn name(self) -> &'static str {
        match self {
            Self::Http => "HTTP status",
            Self::Smtp => "SMTP reply",
            Self::Grpc => "gRPC status",
            Self::SqlState => "SQLSTATE",
            Self::MySql => "MySQL error",
            Self::Oracle => "Oracle error",
            Self::SqlServer => "SQL Server error",
            Self::Mongo => "MongoDB error",
            Self::Exit => "exit code",
            Self::Signal => "signal",
            Self::Errno => "errno",
            Self::Windows => "Windows error",
            Self::Curl => "curl error",
            Self::WebSocket => "WebSocket close code",
        }
    }

    /// The codes, most specific first; one that ends with `*` stands for all with this prefix.
    const fn codes(self) -> &'static [Code] {
        match self {
            Self::Http => HTTP,
            Self::Smtp => SMTP,
            Self::Grpc => GRPC,
            Self::SqlState => SQLSTATE,
            Self::MySql => MYSQL,
            Self::Oracle => ORACLE,
            Self::SqlServer => SQL_SERVER,
            Self::Mongo => MONGO,
            Self::Exit => EXIT,
            Self::Signal => SIGNAL,
            Self::Errno => ERRNO,
            Self::Windows => WINDOWS,
            Self::Curl => CURL,
            Self::WebSocket => WEBSOCKET,
        }
    }
}

type Code = (Strength, Category, Route, &'static str, &'static [&'static str]);

use Strength::{Hint, Likely, Sure};

#[rustfmt::skip]
const HTTP: &[Code] = &[
    (Sure, T, Network, "rate limited", &["429"]),
    (Sure, T, Timeout, "a time limit passed", &["408", "504", "524", "598", "599"]),
    (Sure, T, Network, "the service cannot answer now", &["502", "503", "520", "521", "522", "523", "525", "527", "529", "425", "530"]),
    (Likely, T, Network, "the service failed inside", &["500"]),
    (Sure, P, Network, "the certificate does not fit", &["526", "495", "496"]),
    (Sure, R, System, "no room or no credit left", &["402", "507", "509"]),
    (Likely, P, System, "not permitted", &["401", "403", "407", "451"]),
    (Likely, P, System, "not there or not supported", &["404", "405", "406", "410", "501", "505", "412", "417", "426", "428", "508", "511"]),
    (Likely, P, Corruption, "the request does not pass validation", &["400", "411", "413", "414", "415", "416", "422", "431"]),
    (Likely, P, System, "it conflicts with what is there", &["409"]),
    (Likely, T, System, "locked by somebody else", &["423", "424"]),
    (Likely, T, Network, "the client went away", &["499", "444", "460"]),
    (Hint, P, System, "refused by the service", &["4*"]),
    (Likely, T, Network, "the service failed", &["5*"]),
    (Hint, P, Network, "redirected", &["301", "302", "307", "308"]),
];
#[rustfmt::skip]
const SMTP: &[Code] = &[
    (Sure, R, System, "no room left", &["452", "552"]),
    (Sure, P, System, "refused for good", &["530", "534", "535", "538", "550", "551", "553", "554", "523", "521", "556"]),
    (Sure, T, Network, "try later", &["421", "450", "451", "454", "455", "432", "441", "442"]),
    (Likely, P, System, "a command is not accepted", &["500", "501", "502", "503", "504", "555"]),
    (Likely, T, Network, "try later", &["4*"]),
    (Likely, P, System, "refused for good", &["5*"]),
];
#[rustfmt::skip]
const GRPC: &[Code] = &[
    (Sure, T, Agent, "cancelled", &["1"]), (Sure, P, Corruption, "an argument is wrong", &["3", "11"]),
    (Sure, T, Timeout, "a time limit passed", &["4"]), (Sure, P, System, "not there or already there", &["5", "6"]),
    (Sure, P, System, "not permitted", &["7", "16"]), (Sure, R, System, "a resource is exhausted", &["8"]),
    (Sure, P, System, "not in the right state, or not implemented", &["9", "12"]), (Sure, T, System, "aborted by a conflict", &["10"]),
    (Likely, T, Network, "the service failed inside", &["13"]), (Sure, T, Network, "the service cannot answer now", &["14"]),
    (Sure, P, Corruption, "data was lost", &["15"]),
];
#[rustfmt::skip]
const SQLSTATE: &[Code] = &[
    (Sure, T, System, "the transaction can be repeated", &["40001", "40P01", "40002", "40003", "55P03", "25P04", "72000", "XX001R"]),
    (Sure, T, Timeout, "the statement was stopped for its time", &["57014", "25P03", "HYT00", "HYT01", "57P05"]),
    (Sure, T, System, "the server is starting or stopping", &["57P01", "57P02", "57P03", "58000"]),
    (Sure, R, System, "the database has no room or no connections left", &["53*", "54*", "58030R"]),
    (Sure, P, Network, "the connection is refused by its settings", &["08P01", "08004"]),
    (Sure, T, Network, "the connection failed", &["08*"]),
    (Sure, P, System, "not permitted", &["28*", "42501", "0L*", "0P*"]),
    (Likely, P, Corruption, "a value does not fit", &["22*", "2200*", "21*"]),
    (Sure, P, System, "the data breaks a rule of the database", &["23*", "44*", "27*"]),
    (Likely, P, System, "the statement is wrong, or names what is not there", &["42*", "3D*", "3F*", "26*", "34*", "0A*", "25*", "2F*", "IM*", "24*"]),
    (Likely, P, Corruption, "the database is damaged", &["XX001", "XX002"]),
    (Likely, P, System, "the database failed", &["58*", "XX*", "F0*", "HV*", "P0*"]),
    (Hint, T, System, "a general error of the database", &["HY*", "40*"]),
];
#[rustfmt::skip]
const MYSQL: &[Code] = &[
    (Sure, T, System, "a deadlock", &["1213", "3572", "1614", "3058"]), (Likely, T, Timeout, "a lock was not free in time", &["1205", "3024", "1317", "1969", "1907"]),
    (Sure, R, System, "all connections are in use", &["1040", "1203", "1226", "1135", "1461"]), (Sure, R, System, "no room left", &["1021", "1037", "1038", "1041", "1114", "1206", "3", "28"]),
    (Sure, T, Network, "the connection failed", &["2002", "2003", "2005", "2006", "2013", "2055", "1158", "1159", "1160", "1161", "1152", "1184", "1042", "1043", "1053", "1079", "1080"]),
    (Sure, P, System, "not permitted", &["1044", "1045", "1142", "1143", "1227", "1370", "1698", "1129", "1130", "1820", "1862", "3118", "1251", "1290"]),
    (Sure, P, System, "the data breaks a rule of the database", &["1062", "1048", "1216", "1217", "1451", "1452", "1169", "1022", "1364", "3819", "1557", "1586"]),
    (Likely, P, Corruption, "a value does not fit", &["1264", "1265", "1292", "1366", "1406", "1411", "1367", "3140", "1690", "1153", "1194", "1034", "1035"]),
    (Sure, P, System, "the statement is wrong, or names what is not there", &["1049", "1050", "1051", "1052", "1054", "1064", "1146", "1305", "1091", "1060", "1061", "1071", "1136", "1305"]),
    (Sure, T, System, "the server is read-only or stopping now", &["1836", "1792", "3100", "1927"]),
];
#[rustfmt::skip]
const ORACLE: &[Code] = &[
    (Sure, T, System, "others worked on the same data", &["00060", "60", "00054", "54", "08177", "8177", "01555", "1555", "04068", "04021", "30006", "04020", "25408", "25402"]),
    (Sure, T, Network, "the connection failed", &["12541", "12537", "12547", "12560", "12571", "03113", "3113", "03114", "3114", "03135", "3135", "12545", "12543", "12518", "12528", "12516", "01034", "01033", "01089", "12526", "12514", "17002", "17008", "17410"]),
    (Sure, T, Timeout, "a time limit passed", &["12170", "12535", "12609", "12606", "01013", "1013", "02049", "3136", "03136", "00051", "12608"]),
    (Sure, R, System, "no room or no sessions left", &["04031", "4031", "04030", "4030", "00018", "00020", "18", "20", "02391", "01000", "01650", "01652", "01653", "01654", "01655", "1652", "1653", "1654", "30036", "01536", "19809", "19815", "00257", "257", "12519", "12520", "27102", "02393", "02392"]),
    (Sure, P, System, "not permitted", &["01017", "1017", "28000", "28001", "01031", "1031", "01045", "28002", "28009", "01005"]),
    (Sure, P, System, "the data breaks a rule of the database", &["00001", "1", "01400", "1400", "02290", "02291", "02292", "2290", "2291", "2292", "01407", "01422", "01403", "02449"]),
    (Sure, P, Corruption, "a value does not fit", &["01722", "1722", "01438", "1438", "12899", "01858", "01861", "01847", "01843", "01830", "06502", "6502", "01401", "01578", "01840", "01839", "31011", "40441"]),
    (Likely, P, System, "the statement or the settings are wrong", &["00942", "942", "00904", "904", "00933", "00936", "00900", "00911", "06550", "12154", "12505", "04043", "00955", "01918", "02289", "00907", "06512", "00923", "00979", "12504", "04098", "01110"]),
];
#[rustfmt::skip]
const SQL_SERVER: &[Code] = &[
    (Sure, T, System, "others worked on the same data", &["1205", "3960", "3958", "41302", "41305", "41325", "41839"]), (Likely, T, Timeout, "a time limit passed", &["1222", "258", "121"]),
    (Sure, T, System, "the database is not ready now", &["40613", "40197", "40540", "49918", "49919", "49920", "4221", "983", "976", "6005", "40143", "40166", "922", "904", "921", "18401", "615"]), (Sure, T, Network, "it asks to come more slowly", &["40501"]),
    (Sure, R, System, "no room or no workers left", &["701", "802", "1105", "1101", "9002", "10928", "10929", "8645", "8651", "8657", "40544", "40549", "40551", "40552", "40553", "17803", "5149", "3257", "17809", "10936", "1827"]),
    (Sure, T, Network, "the connection failed", &["10053", "10054", "10060", "10061", "233", "64", "53", "20", "2", "26", "40", "11001", "4060T", "17142", "17829"]),
    (Sure, P, System, "not permitted", &["18456", "18452", "229", "230", "262", "4060", "916", "15247", "18470", "18486", "18488", "297", "300", "40615", "40532"]),
    (Sure, P, System, "the data breaks a rule of the database", &["2627", "2601", "547", "515", "2628U", "3621", "544"]),
    (Sure, P, Corruption, "a value does not fit", &["8152", "245", "8114", "2628", "241", "242", "8115", "220", "232", "248", "8169", "824", "823", "825", "295", "9803"]),
    (Likely, P, System, "the statement is wrong, or names what is not there", &["102", "156", "207", "208", "2812", "137", "911", "319", "4121", "213", "201", "8144", "2714", "3701", "209", "8120", "4104", "105"]),
];
#[rustfmt::skip]
const MONGO: &[Code] = &[
    (Sure, T, System, "others worked on the same data", &["112", "251", "24", "117", "225", "244", "246"]), (Sure, T, Timeout, "a time limit passed", &["50", "262", "202", "64", "290"]),
    (Sure, T, System, "the replica set is electing or stopping", &["189", "91", "10107", "13435", "13436", "11600", "11602", "133", "134", "10058", "13388", "63", "150", "356", "234"]), (Sure, T, Network, "the connection failed", &["6", "7", "89", "9001", "317", "6600"]),
    (Sure, P, System, "the data breaks a rule of the database", &["11000", "11001", "66"]), (Sure, P, System, "not permitted", &["13", "18", "11", "33"]),
    (Sure, P, Corruption, "the document does not pass validation", &["121", "22", "14", "10334", "17280", "17419", "2T"]), (Sure, R, System, "no room left", &["14031", "292", "146", "16819", "96R", "12501", "8001"]),
    (Likely, P, System, "the command is wrong, or names what is not there", &["2", "9", "26", "27", "59", "73", "43", "48", "85", "86", "40", "168", "17007", "40324", "72", "67", "20", "51"]),
];
#[rustfmt::skip]
const EXIT: &[Code] = &[
    (Sure, R, Agent, "killed by signal 9, on Linux nearly always for its use of memory", &["137", "-9"]), (Sure, T, Timeout, "what timeout(1) ends with", &["124"]),
    (Sure, T, Agent, "told to stop", &["143", "130", "129", "-15", "-2", "-1"]), (Sure, P, Agent, "the process crashed", &["139", "134", "132", "136", "135", "138", "-11", "-6", "-4", "-8", "-7", "3221225477", "-1073741819", "159", "3221226505"]),
    (Sure, P, System, "the program cannot be started", &["126", "127", "78"]), (Sure, P, Corruption, "the input is wrong (sysexits)", &["65"]), (Likely, T, System, "try again (sysexits)", &["75"]), (Likely, P, System, "no permission, no input or no host (sysexits)", &["77", "66", "67", "73", "72"]),
    (Likely, T, Network, "a service or host is not there (sysexits)", &["68", "69", "76"]), (Likely, P, Agent, "an error of the program itself", &["70", "64", "101"]), (Likely, T, Network, "cut off by its reader", &["141"]), (Sure, R, Agent, "killed for the processor or file it used", &["152", "153"]), (Hint, P, Agent, "the handler ended with an error", &["*"]),
];
#[rustfmt::skip]
const SIGNAL: &[Code] = &[
    (Sure, R, Agent, "killed, on Linux nearly always for its use of memory", &["9"]), (Sure, T, Agent, "told to stop", &["15", "2", "1", "3"]),
    (Sure, P, Agent, "the process crashed", &["11", "6", "4", "8", "7", "5", "31"]), (Sure, R, Agent, "a limit of processor time or file size was reached", &["24", "25"]), (Likely, T, Network, "cut off by its reader", &["13"]), (Likely, T, Timeout, "an alarm went off", &["14"]),
];
#[rustfmt::skip]
const ERRNO: &[Code] = &[
    (Sure, T, Network, "the connection failed", &["111", "104", "103", "113", "101", "32", "107", "112", "100", "102", "108", "61M", "-3", "-2", "8M", "54M"]), (Sure, T, Timeout, "a time limit passed", &["110", "62", "60M"]),
    (Sure, R, System, "no room or no handles left", &["28", "24", "23", "12", "105", "122", "99", "27", "119"]), (Sure, T, System, "busy for a moment", &["11", "16", "26", "4", "116", "35", "37"]),
    (Sure, P, System, "not permitted", &["13", "1", "30"]), (Sure, P, System, "not there, or not of that kind", &["2", "20", "21", "17", "39", "19", "6", "3", "36", "40", "18", "22", "95", "38", "8", "9", "5", "98", "25", "7", "97", "10"]), (Likely, P, Corruption, "the data cannot be read", &["74", "84", "75", "71"]), (Likely, P, Agent, "a mistake of the program", &["14", "33", "34"]),
];
#[rustfmt::skip]
const WINDOWS: &[Code] = &[
    (Sure, T, Network, "the connection failed", &["10061", "10054", "10053", "10065", "10051", "11001", "11002", "64", "1236", "10050", "10057", "12029", "12007", "12030", "1722", "53", "59", "10058"]), (Sure, T, Timeout, "a time limit passed", &["10060", "121", "1460", "258", "12002"]),
    (Sure, R, System, "no room or no handles left", &["8", "14", "112", "1450", "1455", "10055", "10024", "4", "39", "1816", "10048P", "1453"]), (Sure, T, System, "used by somebody else now", &["32", "33", "170", "10035", "21"]),
    (Sure, P, System, "not permitted", &["5", "1314", "1326", "10013", "19", "1331", "740", "1907"]), (Sure, P, System, "not there, or not of that kind", &["2", "3", "15", "87", "123", "126", "127", "161", "183", "193", "206", "267", "1060", "145", "80", "10048", "50", "10049", "998"]),
    (Likely, P, Corruption, "the data cannot be read", &["13", "23", "1392", "1393"]),
];
#[rustfmt::skip]
const CURL: &[Code] = &[
    (Sure, T, Network, "the connection failed", &["5", "6", "7", "16", "18", "35", "52", "55", "56", "92", "95", "12", "81"]), (Sure, T, Timeout, "a time limit passed", &["28"]), (Sure, P, Network, "the certificate or address does not fit", &["1", "3", "47", "51", "53", "54", "58", "59", "60", "77", "83", "90", "91", "80"]),
    (Sure, P, System, "not permitted or not there", &["9", "37", "67", "78", "79", "22", "94"]), (Likely, P, Corruption, "the answer cannot be decoded", &["8", "61"]), (Sure, R, System, "no room left", &["23", "27", "63", "70"]),
];
#[rustfmt::skip]
const WEBSOCKET: &[Code] = &[
    (Sure, T, Network, "the connection was lost", &["1001", "1005", "1006", "1011", "1012", "1013", "1014"]), (Sure, P, Network, "the encrypted connection failed", &["1015"]), (Sure, P, Corruption, "a frame cannot be read", &["1002", "1003", "1007", "1009", "1010"]), (Sure, P, System, "not permitted", &["1008", "4001", "4003", "4004"]),
];

/// The rules for the numbers in the code field and in the text.
pub(in super::super) fn code_hits(error: &ErrorInfo, words: &Words) -> Vec<Hit> {
    let mut hits = Vec::new();
    let code = head(error.code.as_deref().unwrap_or_default(), 64).trim();
    if code.bytes().any(|byte| byte.is_ascii_digit()) {
        let (scheme, number) = of_field(code, error);
        if let Some(scheme) = scheme {
            hits.extend(look_up(scheme, number, 0.0));
        }
    }
    in_text(words, &mut hits);
    hits
}

fn look_up(scheme: Scheme, code: &str, doubt: f32) -> Option<Hit> {
    let fits = |entry: &str| match entry.strip_suffix('*') {
        Some(start) => code.get(..start.len()).is_some_and(|begins| begins.eq_ignore_ascii_case(start)),
        None => entry.eq_ignore_ascii_case(code),
    };
    let (strength, category, route, means, _) =
        scheme.codes().iter().find(|row| row.4.iter().any(|e| fits(e)))?;
    let reason = Reason::Coded(scheme.name(), code.to_owned(), means);
    Some(Hit {
        category: Some(*category),
        route: Some(*route),
        weight: strength.weight() * (1.0 - doubt),
        reason,
    })
}

/// Names of services with their own codes.
#[rustfmt::skip]
const SERVICES: &[(&str, Scheme)] = &[
    ("mysql", Scheme::MySql), ("mariadb", Scheme::MySql), ("innodb", Scheme::MySql), ("er_", Scheme::MySql), ("pymysql", Scheme::MySql),
    ("sqlserver", Scheme::SqlServer), ("sql server", Scheme::SqlServer), ("mssql", Scheme::SqlServer), ("sqlclient", Scheme::SqlServer), ("tedious", Scheme::SqlServer), ("sqlexception", Scheme::SqlServer),
    ("oracle", Scheme::Oracle), ("ora-", Scheme::Oracle), ("cx_", Scheme::Oracle), ("mongo", Scheme::Mongo),
    ("smtp", Scheme::Smtp), ("mail", Scheme::Smtp), ("recipient", Scheme::Smtp),
    ("grpc", Scheme::Grpc), ("rpc", Scheme::Grpc), ("statusruntime", Scheme::Grpc), ("websocket", Scheme::WebSocket), ("closeevent", Scheme::WebSocket), ("curl", Scheme::Curl),
    ("winerror", Scheme::Windows), ("win32", Scheme::Windows), ("wsa", Scheme::Windows),
    ("command", Scheme::Exit), ("process", Scheme::Exit), ("exit", Scheme::Exit), ("signal", Scheme::Exit), ("shell", Scheme::Exit), ("script", Scheme::Exit), ("container", Scheme::Exit), ("pod", Scheme::Exit), ("oomkilled", Scheme::Exit),
    ("errno", Scheme::Errno), ("oserror", Scheme::Errno), ("os error", Scheme::Errno), ("ioerror", Scheme::Errno), ("io::error", Scheme::Errno),
];

/// The scheme of the code field, and the code without its prefix.
fn of_field<'a>(code: &'a str, error: &ErrorInfo) -> (Option<Scheme>, &'a str) {
    let upper = |prefix: &str| {
        code.get(..prefix.len())
            .filter(|start| start.eq_ignore_ascii_case(prefix))
            .and_then(|_| code.get(prefix.len()..))
    };
    for (prefix, scheme) in [
        ("ORA-", Scheme::Oracle),
        ("HTTP", Scheme::Http),
        ("SQLSTATE", Scheme::SqlState),
        ("WSA", Scheme::Windows),
    ] {
        if let Some(rest) = upper(prefix) {
            return (Some(scheme), rest.trim_matches(|c: char| !c.is_ascii_alphanumeric()));
        }
    }
    let digits = code.bytes().filter(u8::is_ascii_digit).count();
    let number = digits == code.trim_start_matches('-').len();
    let is_state = code.len() == 5 && code.bytes().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase());
    if !number {
        return (is_state.then_some(Scheme::SqlState), code);
    }
    let service = |text: &str| {
        let text = head(text, 256).to_ascii_lowercase();
        SERVICES.iter().find(|(name, _)| text.contains(name)).map(|(_, scheme)| *scheme)
    };
    let named = service(&error.error_type).or_else(|| service(&error.message));
    let in_table = |scheme: &Scheme| look_up(*scheme, code, 0.0).is_some();
    let scheme = match named.filter(in_table) {
        // A process of a mail or database client can still fail with an HTTP status.
        Some(Scheme::Exit) if (400..=599).contains(&code.parse::<u32>().unwrap_or_default()) => {
            Some(Scheme::Http)
        }
        Some(Scheme::Grpc) if digits == 3 => Some(Scheme::Http),
        Some(scheme) => Some(scheme),
        None if digits == 3 && code.starts_with(['3', '4', '5']) => Some(Scheme::Http),
        None if is_state => Some(Scheme::SqlState),
        None if digits <= 3 => Some(Scheme::Exit),
        None => None,
    };
    (scheme, code)
}

/// Adds the rules for numbers in the text that say what they are: "status 503", "exit code 2", "ORA-00060".
fn in_text(words: &Words, hits: &mut Vec<Hit>) {
    let list = &words.list;
    for (at, word) in list.iter().enumerate() {
        if word.kind == Kind::Path || word.part == Part::Code {
            continue;
        }
        let text = words.text(word);
        if !text.bytes().any(|b| b.is_ascii_digit()) {
            continue;
        }
        let before = |back: usize| {
            let word = at.checked_sub(back).and_then(|at| list.get(at)).filter(|w| w.part == word.part);
            word.map_or("", |word| words.text(word))
        };
        let scheme = match (before(2), before(1)) {
            (_, "sqlstate") => Some((Scheme::SqlState, 0.0)),
            (_, "ora") => Some((Scheme::Oracle, 0.0)),
            (_, "errno") | ("os", "error") => Some((Scheme::Errno, 0.0)),
            ("win" | "socket", "error") | (_, "winerror") => Some((Scheme::Windows, 0.0)),
            ("exit" | "return" | "exited", "code" | "status" | "with")
            | ("with", "status")
            | (_, "exited") => Some((Scheme::Exit, 0.0)),
            ("with", "code") if before(3) == "exited" => Some((Scheme::Exit, 0.0)),
            (_, "signal") => Some((Scheme::Signal, 0.0)),
            ("curl", _) | (_, "curl") => Some((Scheme::Curl, 0.0)),
            (_, "http" | "status") | ("status" | "response" | "error" | "http", "code") => {
                Some((Scheme::Http, 0.1))
            }
            (_, "error" | "code" | "returned" | "received" | "got" | "responded" | "with") => {
                Some((Scheme::Http, 0.4))
            }
            // MySQL drivers of Python begin a message with the number.
            (_, "") if text.len() == 4 => Some((Scheme::MySql, 0.0)),
            (_, "") => Some((Scheme::Http, 0.3)),
            ("1" | "0", "1" | "2") if before(3) == "http" => Some((Scheme::Http, 0.0)),
            _ => None,
        };
        let Some((scheme, doubt)) = scheme else { continue };
        if scheme == Scheme::Http
            && !(text.len() == 3 && word.kind == Kind::Number && text.starts_with(['4', '5']))
        {
            continue;
        }
        let scheme = if scheme == Scheme::Http && is_mail(words) { Scheme::Smtp } else { scheme };
        hits.extend(look_up(scheme, text, doubt));
    }
}

fn is_mail(words: &Words) -> bool {
    words.list.iter().any(|word| matches!(words.text(word), "smtp" | "smtplib" | "mailbox" | "mailer"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(error_type: &str, code: &str, message: &str) -> Vec<String> {
        let error = ErrorInfo {
            error_type: error_type.into(),
            code: Some(code.into()),
            message: message.into(),
            ..ErrorInfo::default()
        };
        code_hits(&error, &Words::of(&error)).iter().map(|hit| hit.reason.text()).collect()
    }

    #[test]
    fn a_number_is_read_as_what_it_is() {
        for (error_type, code, message, wanted) in [
            ("HttpError", "429", "", "HTTP status 429: rate limited"),
            ("smtplib.SMTPDataError", "452", "", "SMTP reply 452: no room left"),
            ("pymysql.err.OperationalError", "1213", "", "MySQL error 1213: a deadlock"),
            ("PgError", "40P01", "", "SQLSTATE 40P01: the transaction can be repeated"),
            ("CommandFailed", "124", "", "exit code 124: what timeout(1) ends with"),
            ("", "", "write: os error 28", "errno 28: no room or no handles left"),
            ("", "", "the server returned status code 503", "HTTP status 503: the service cannot answer now"),
            ("", "", "terminated by signal 11", "signal 11: the process crashed"),
            ("", "", "ORA-00060: waiting", "Oracle error 00060: others worked on the same data"),
        ] {
            let reasons = found(error_type, code, message);
            assert!(
                reasons.iter().any(|reason| reason == wanted),
                "{error_type} {code} {message}: {reasons:?}"
            );
        }
        assert!(found("Error", "", "order 503 has 429 lines").is_empty());
    }

    #[test]
    fn codes_that_are_not_codes_mean_nothing() {
        for code in ["", " ", "é", "99999999999999999999", "-", "\u{0}1", "4é9"] {
            assert_eq!(found("Error", code, code), Vec::<String>::new(), "{code:?}");
        }
    }
}
