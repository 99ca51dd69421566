//! How fast collections of a WebDAV server are listed, and in how much memory. The server is a thread of this
//! program, which makes its answers up as it sends them.
//!
//! ```sh
//! cargo run --release -p longhaul-storage-remote --example listing -- [COLLECTIONS [MEMBERS]]
//! ```
//!
//! By default one collection with a million members.

use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::thread;
use std::time::Instant;

use longhaul_storage::{Storage as _, Visit};
use longhaul_storage_remote::{Credential, Remote, RemoteConfig, RemoteStorage, RemoteStorageOptions, Trust};
use longhaul_testkit::CertificateAuthority;

const BEGIN: &str = "<?xml version=\"1.0\" encoding=\"utf-8\"?>\n<D:multistatus xmlns:D=\"DAV:\">\n";
const END: &str = "</D:multistatus>\n";

/// The served tree: collections in the root, each with as many files.
#[derive(Clone, Copy)]
struct ServedTree {
    collections: u64,
    members: u64,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut number = |default: u64| arguments.next().map_or(Ok(default), |text| text.parse::<u64>());
    let tree = ServedTree { collections: number(1)?, members: number(1_000_000)? };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let url = format!("http://{}/data/", listener.local_addr()?);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || tree.serve(stream));
        }
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let config = RemoteConfig {
        trust: Trust::Pem(CertificateAuthority::new("nobody's").ca_pem),
        allow: vec!["127.0.0.0/8".parse()?],
        ..RemoteConfig::default()
    };
    let remote = Arc::new(Remote::new(config)?);
    let options = RemoteStorageOptions::new("disk".parse()?, url, Credential::None);
    let storage = RemoteStorage::open(remote, options, runtime.handle().clone())?;
    let before = peak_bytes()?;
    let begun = Instant::now();
    let mut files = 0u64;
    storage.walk("", &mut |visit| {
        files += u64::from(matches!(visit, Visit::File { .. }));
        ControlFlow::Continue(())
    })?;
    let seconds = begun.elapsed().as_secs_f64();
    writeln!(
        io::stdout(),
        "{files} files in {} collections: {:.0} per second, {} MB of memory beyond the {} MB before",
        tree.collections,
        files as f64 / seconds,
        (peak_bytes()? - before) / 1_000_000,
        before / 1_000_000
    )?;
    Ok(())
}

impl ServedTree {
    fn serve(self, stream: TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut request = String::new();
        let mut line = String::new();
        while reader.read_line(&mut line)? > 2 {
            request.push_str(&line);
            line.clear();
        }
        let path = request.split(' ').nth(1).unwrap_or("/");
        let mut writer = BufWriter::with_capacity(256 << 10, stream);
        writer.write_all(b"HTTP/1.1 207 Multi-Status\r\nConnection: close\r\n\r\n")?;
        writer.write_all(BEGIN.as_bytes())?;
        write_member(&mut writer, path, true)?;
        match path == "/data/" {
            true => (0..self.collections)
                .try_for_each(|number| write_member(&mut writer, &format!("{path}run{number:07}/"), true))?,
            // In no order, as some servers tell them.
            false => (0..self.members).try_for_each(|number| {
                let number = number.wrapping_mul(7_919) % self.members;
                write_member(&mut writer, &format!("{path}AOD.{number:012}._000001.root"), false)
            })?,
        }
        writer.write_all(END.as_bytes())?;
        writer.flush()
    }
}

/// As much as Apache says of one.
fn write_member(writer: &mut impl Write, path: &str, is_collection: bool) -> io::Result<()> {
    let kind = if is_collection { "<D:collection/>" } else { "" };
    writeln!(
        writer,
        "<D:response xmlns:lp1=\"DAV:\">\n<D:href>{path}</D:href>\n<D:propstat>\n<D:prop>\n\
         <lp1:resourcetype>{kind}</lp1:resourcetype>\n\
         <lp1:getcontentlength>2147483648</lp1:getcontentlength>\n\
         <lp1:getlastmodified>Mon, 12 Feb 2024 10:00:00 GMT</lp1:getlastmodified>\n\
         <lp1:getetag>\"80000000-611294cbd5f40\"</lp1:getetag>\n</D:prop>\n\
         <D:status>HTTP/1.1 200 OK</D:status>\n</D:propstat>\n</D:response>"
    )
}

/// The most memory that this program has had so far.
fn peak_bytes() -> Result<u64, Box<dyn Error>> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}
