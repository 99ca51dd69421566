//! Password input: from the terminal without echo, or from standard input. Never from an argument, which
//! every process on the machine can read and shells record.

use std::fs::File;
use std::io::{self, BufRead, Read, Write};

use longhaul_model::FaultCode;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use zeroize::Zeroizing;

use crate::failure::Failure;

/// Bytes of a password.
const PASSWORD_BYTES_MAX: u64 = 4_096;
const TERMINAL: &str = "/dev/tty";

/// Reads the first line of standard input.
pub fn from_stdin() -> Result<String, Failure> {
    let failed = |error: io::Error| failure(format!("reading the password from standard input: {error}"));
    first_line(io::stdin().lock()).map_err(failed)
}

/// Asks twice, since the input is invisible.
pub fn new_from_terminal(name: &str) -> Result<String, Failure> {
    let mut terminal = File::options().read(true).write(true).open(TERMINAL).map_err(|_| {
        Failure::usage(
            "the password is missing",
            "there is no terminal to read it from",
            "pass it on standard input: the same command with --password-stdin < FILE",
        )
    })?;
    let name = longhaul_model::units::printable(name);
    let first = prompt(&mut terminal, &format!("New password for {name}: "))?;
    let second = Zeroizing::new(prompt(&mut terminal, "Repeat it: ")?);
    if first != *second {
        return Err(Failure::usage(
            "the passwords differ",
            "the password is asked for twice, since it is not shown",
            "try again",
        ));
    }
    Ok(first)
}

fn prompt(terminal: &mut File, words: &str) -> Result<String, Failure> {
    let failed = |error: io::Error| failure(format!("asking the terminal: {error}"));
    terminal.write_all(words.as_bytes()).map_err(failed)?;
    let silent = EchoOff::begin(terminal).map_err(failed)?;
    let typed = read_keys(&silent.terminal);
    drop(silent);
    terminal.write_all(b"\n").map_err(failed)?;
    typed.map_err(failed)
}

/// A terminal without echo that delivers each key at once, including interrupts: a program killed by a signal
/// would leave echo off.
struct EchoOff {
    terminal: File,
    before: Termios,
}

impl EchoOff {
    fn begin(terminal: &File) -> io::Result<EchoOff> {
        let before = tcgetattr(terminal)?;
        let mut silent = before.clone();
        silent.local_modes -= LocalModes::ECHO | LocalModes::ICANON | LocalModes::ISIG;
        tcsetattr(terminal, OptionalActions::Flush, &silent)?;
        Ok(EchoOff { terminal: terminal.try_clone()?, before })
    }
}

impl Drop for EchoOff {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Flush, &self.before);
    }
}

fn failure(why: String) -> Failure {
    Failure::new(FaultCode::BadRequest, why)
}

/// Reads keys up to Enter.
fn read_keys(mut keys: impl Read) -> io::Result<String> {
    const INTERRUPT: u8 = 3;
    const END: u8 = 4;
    const ERASE_LINE: u8 = 21;
    const ERASE: [u8; 2] = [8, 127];
    let mut typed = Zeroizing::new(Vec::new());
    // One byte at a time: what is typed after Enter is for the next reader.
    let mut key = [0];
    loop {
        match keys.read(&mut key) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        match key[0] {
            b'\r' | b'\n' => return text(&typed),
            INTERRUPT => return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted")),
            END if typed.is_empty() => break,
            ERASE_LINE => typed.clear(),
            key if ERASE.contains(&key) => {
                // Erases a whole character, of however many bytes.
                while typed.pop().is_some_and(|byte| byte & 0xc0 == 0x80) {}
            }
            _ if typed.len() as u64 >= PASSWORD_BYTES_MAX => return Err(too_long()),
            key => typed.push(key),
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

fn first_line(input: impl BufRead) -> io::Result<String> {
    let mut line = Zeroizing::new(Vec::new());
    input.take(PASSWORD_BYTES_MAX + 1).read_until(b'\n', &mut line)?;
    if line.len() as u64 > PASSWORD_BYTES_MAX {
        return Err(too_long());
    }
    let end = line.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
    text(&line[..end])
}

fn too_long() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("it is longer than {PASSWORD_BYTES_MAX} bytes"))
}

fn text(bytes: &[u8]) -> io::Result<String> {
    let text = std::str::from_utf8(bytes);
    text.map(str::to_owned).map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is not UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_become_what_was_meant() {
        let typed = |keys: &str| read_keys(keys.as_bytes()).map_err(|error| error.kind());
        assert_eq!(typed("four words\r"), Ok("four words".into()));
        assert_eq!(typed("fü\u{7f}\u{8}our\n"), Ok("our".into()));
        assert_eq!(typed("\u{7f}wrong\u{15}right\n"), Ok("right".into()));
        assert_eq!(typed("half\u{3}\n"), Err(io::ErrorKind::Interrupted));
        assert_eq!(
            (typed("\u{4}"), typed("no end")),
            (Err(io::ErrorKind::UnexpectedEof), Err(io::ErrorKind::UnexpectedEof))
        );
        assert!(typed(&format!("{}\n", "x".repeat(5_000))).is_err());
    }

    #[test]
    fn the_first_line_of_a_file_is_the_password_with_its_spaces() {
        let line = |text: &str| first_line(text.as_bytes()).map_err(|error| error.kind());
        assert_eq!(line(" four words \r\nnext"), Ok(" four words ".into()));
        assert_eq!((line("no end"), line("")), (Ok("no end".into()), Ok(String::new())));
        assert!(line(&"x".repeat(5_000)).is_err() && first_line(&b"\xff\n"[..]).is_err());
    }

    proptest! {
        #[test]
        fn nothing_panics(keys in proptest::collection::vec(any::<u8>(), 0..60)) {
            let _ = (read_keys(&keys[..]), first_line(&keys[..]));
        }
    }
}
