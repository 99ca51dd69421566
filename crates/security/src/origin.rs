use longhaul_model::Fault;

/// For plain HTTP on a loopback address: the `Host` must be one of `allowed` (`host:port`), and an `Origin`, if there is one,
/// must be `http://` or `https://` and one of them.
pub fn check_origin(_host: Option<&str>, _origin: Option<&str>, _allowed: &[String]) -> Result<(), Fault> {
    todo!()
}
