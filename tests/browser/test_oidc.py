"""Signing in at a real identity provider in a browser, from the first page to signing out."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import Browser, expect
from support.api_server import PATIENT, LiveServer, engine_of
from support.identity_providers import driftline_side, identity_provider

from analytics.store.store import Store
from service.setup.access import AccessStore
from service.setup.workspace import utc_now
from service.web.bounds import ApiSettings


def test_a_person_signs_in_switches_projects_and_signs_out(chromium: Browser, tmp_path: Path) -> None:
    """The way leads from a page to the provider and back to this page, with the rights of the person's groups."""
    ours = driftline_side("")
    settings = ApiSettings(queries=PATIENT, identity_provider=ours)
    with Store(tmp_path / "fleet.duckdb") as store, AccessStore(tmp_path / "fleet.access", utc_now) as access:
        server = LiveServer(store, access, settings, engine_of)
        try:
            with (
                identity_provider(tmp_path, f"{server.url}/sign-in/oidc/callback") as theirs,
                chromium.new_context() as context,
            ):
                ours.issuer = theirs.issuer
                page = context.new_page()
                page.goto(f"{server.url}/help")
                page.get_by_role("link", name="Sign in with your organization").click()
                page.locator("[name=login]").fill("ada+support-leads,web-analysts")
                page.locator("[name=password]").fill("any")
                page.locator("[type=submit]").click()
                page.locator("[type=submit]").click()  # consent
                expect(page).to_have_url(f"{server.url}/help")
                expect(page.locator(".who")).to_contain_text("ada")
                expect(page.get_by_role("link", name="SQL")).to_have_count(0)
                page.locator(".switch > summary").click()
                page.get_by_role("button", name="web").click()
                expect(page.get_by_role("link", name="SQL")).to_be_visible()
                page.get_by_role("button", name="Sign out").click()
                expect(page).to_have_url(re.compile("/sign-in$"))
                assert access.sign_ins.active() == []
        finally:
            server.stop()
