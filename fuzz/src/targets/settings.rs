//! Configuration files: any text gives settings that are sound, or an error that says where.

use longhaul_agent::Config;

pub fn settings(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let read: Result<Config, _> = toml::from_str(text);
    let Ok(config) = read else { return };
    let written = toml::to_string(&config).expect("settings can be written");
    assert_eq!(toml::from_str(&written), Ok(config.clone()), "{written}");
    if config.check().is_ok() {
        for storage in &config.storages {
            assert!(storage.name_rules().check().is_ok());
        }
    }
}
