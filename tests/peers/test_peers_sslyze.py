"""sslyze, unchanged, at a TLS listener: no old protocol, no weak cipher, no known weakness."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from certificates import Authority
from peers.conftest import CACHE, install
from peers.test_peers_nsq import pip
from penstock.testing import Broker

SSLYZE = "sslyze==6.3.1"
OLD = ("ssl_2_0", "ssl_3_0", "tls_1_0", "tls_1_1")
SCANS = (
    "--mozilla_config", "disable", "--sslv2", "--sslv3", "--tlsv1", "--tlsv1_1", "--tlsv1_2", "--tlsv1_3", "--heartbleed",
    "--openssl_ccs", "--robot", "--compression", "--reneg", "--fallback", "--early_data", "--ems",
)  # fmt: skip
WEAK = ("RC4", "3DES", "_DES_", "NULL", "EXPORT", "MD5", "anon")


@pytest.mark.parametrize("door", ["https", "remoting"])
def test_nothing_weak_is_offered(door: str, tmp_path: Path) -> None:
    folder = install(CACHE / SSLYZE, *pip(SSLYZE))
    authority = Authority(tmp_path / "authority")
    found = tmp_path / "found.json"
    with Broker(**authority.sign("server").settings, https_port=0) as broker:
        address = broker.call(lambda server: server.addresses[door])
        command = [str(folder / "bin" / "python"), "-m", "sslyze", *SCANS, "--json_out", str(found), address]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert found.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    (server,) = json.loads(found.read_text())["server_scan_results"]
    result = server["scan_result"]
    assert result is not None, server
    for old in OLD:
        assert not result[f"{old}_cipher_suites"]["result"]["accepted_cipher_suites"], old
    accepted = [
        suite["cipher_suite"]["name"]
        for new in ("tls_1_2", "tls_1_3")
        for suite in result[f"{new}_cipher_suites"]["result"]["accepted_cipher_suites"]
    ]
    assert accepted
    assert not [name for name in accepted if any(weak in name for weak in WEAK)]
    assert result["heartbleed"]["result"]["is_vulnerable_to_heartbleed"] is False
    assert result["openssl_ccs_injection"]["result"]["is_vulnerable_to_ccs_injection"] is False
    assert result["robot"]["result"]["robot_result"].startswith("NOT_VULNERABLE")
    assert result["tls_compression"]["result"]["supports_compression"] is False
    renegotiation = result["session_renegotiation"]["result"]
    assert renegotiation["is_vulnerable_to_client_renegotiation_dos"] is False
    assert result["tls_fallback_scsv"]["result"]["supports_fallback_scsv"] is True
    if door == "https":  # this one sslyze asks by HTTP
        assert result["tls_1_3_early_data"]["result"]["supports_early_data"] is False
    assert result["tls_extended_master_secret"]["result"]["supports_ems_extension"] is True
