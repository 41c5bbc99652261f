"""Sign-ins to the pages: who is signed in, and ending that."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic import Field

from service.http.answers.project_answers import Moment
from service.http.auth.tokens import WRITES, Name, require_holder
from service.setup.access.access import MARK
from service.text.paths import API
from service.web.authentication import FleetAdmin
from service.web.bodies import JsonRoute
from service.web.context import Services
from service.web.errors import documented
from service.web.response_models import Answer

router = APIRouter(route_class=JsonRoute, tags=["access"])


class SignInAnswer(Answer):
    """A sign-in that goes on."""

    name: str = Field(description="The operator.", examples=["root"])
    token: str = Field(description="Public prefix of the token.", examples=["dl_0f3a77c1b2d4"])
    created_at: Moment
    expires_at: Moment = Field(description="When it ends by itself.")


class SignInsAnswer(Answer):
    """Sign-ins that go on, newest first."""

    sign_ins: list[SignInAnswer]
    count: int


class EndedAnswer(Answer):
    """The number of sign-ins that were ended."""

    name: str
    ended: int


@router.get(f"{API}/sign-ins", responses=documented())
def list_sign_ins(_: FleetAdmin, services: Services, response: Response) -> SignInsAnswer:
    """List who is signed in to the pages, newest first."""
    response.headers["Cache-Control"] = "no-store"
    found = [
        SignInAnswer(name=one.name, token=f"{MARK}_{one.prefix}", created_at=one.created_at, expires_at=one.expires_at)
        for one in services.access.sign_ins.going_on()
    ]
    return SignInsAnswer(sign_ins=found, count=len(found))


@router.post(f"{API}/operators/{{name}}/sign-out", responses=documented(*WRITES, 404))
def end_sign_ins(_: FleetAdmin, services: Services, name: Name) -> EndedAnswer:
    """End every sign-in of an operator, your own as well. Its tokens stay valid: revoke them to keep it out."""
    require_holder(services.access, "operator", name)
    return EndedAnswer(name=name, ended=services.access.sign_ins.end_all(name))
