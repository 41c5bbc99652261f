"""A real identity provider (`oidc-provider` from npm), and a person who signs in at it."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import httpx2
from support import npm

from service.setup.oidc import IdentityProvider, parse_role_mapping

VERSION = "9.13.3"
CLIENT, SECRET = "driftline", "a-secret-of-the-client"
ROLES = "platform=admin, support-leads=reviewer@ops, web-analysts=analyst@web, readers=viewer"
_SCRIPT = """
import http from "node:http";
const [, , folder, redirect] = process.argv;
const { default: Provider } = await import(`${folder}/lib/index.js`);
const server = http.createServer();
server.listen(0, "127.0.0.1", () => {
  const issuer = `http://localhost:${server.address().port}`;
  const provider = new Provider(issuer, {
    clients: [{
      client_id: "CLIENT", client_secret: "SECRET", redirect_uris: [redirect],
      grant_types: ["authorization_code"], response_types: ["code"],
    }],
    claims: { openid: ["sub"], profile: ["preferred_username", "groups"], email: ["email"] },
    pkce: { required: () => true },
    cookies: { keys: ["of a test"] },
    // A login is a name, and after a plus sign the groups: ada+platform,readers
    async findAccount(_, id) {
      const [name, groups = ""] = id.split("+");
      return { accountId: id, claims: () => ({ sub: id, preferred_username: name, groups: groups.split(",").filter(Boolean) }) };
    },
  });
  server.on("request", provider.callback());
  console.log(issuer);
});
"""


@contextlib.contextmanager
def identity_provider(folder: Path, redirect_uri: str) -> Iterator[IdentityProvider]:
    """Run a provider that knows Driftline by this redirect address; yield Driftline's side of it. Skip the test without npm."""
    package = npm.or_skip(lambda: npm.package("oidc-provider", VERSION))
    script = folder / "provider.mjs"
    script.write_text(_SCRIPT.replace("CLIENT", CLIENT).replace("SECRET", SECRET), "utf-8")
    command = [npm.node(), script, package, redirect_uri]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            issuer = next(line.strip() for line in process.stdout if line.startswith("http"))
            yield driftline_side(issuer)
        finally:
            process.kill()


def driftline_side(issuer: str) -> IdentityProvider:
    """Return Driftline's side of a provider."""
    return IdentityProvider(
        issuer=issuer,
        client_id=CLIENT,
        client_secret=SECRET,
        scope="openid profile email",
        groups_claim="groups",
        roles=parse_role_mapping(ROLES),
    )


def sign_in_at_provider(address: str, login: str, until: str) -> str:
    """Log in and consent at the provider; return the address on our server, beginning with `until`, that it leads to."""
    with httpx2.Client(follow_redirects=False, timeout=60) as browser:
        answer = browser.get(address)
        for _ in range(12):
            if "location" in answer.headers:
                address = urljoin(str(answer.url), answer.headers["location"])
                if address.startswith(until):
                    return address
                answer = browser.get(address)
                continue
            prompt = "login" if 'name="login"' in answer.text else "consent"
            form = re.search(r'action="([^"]+)"', answer.text)
            assert form is not None, answer.text
            fields = {"prompt": prompt, "login": login, "password": "any"}
            answer = browser.post(urljoin(str(answer.url), form[1]), data=fields)
    raise AssertionError(f"the provider did not lead back: {answer.url}")
