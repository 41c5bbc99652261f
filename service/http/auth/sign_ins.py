"""Sign-ins to the pages: who is signed in, and ending that."""

from __future__ import annotations

from fastapi import APIRouter, Response

from service.http.auth.tokens import WRITES, Name, require_holder
from service.read.access import EndedSignIns, SignInList
from service.text.links import API
from service.web.authentication import FleetAdmin
from service.web.bodies import JsonRoute
from service.web.context import Services
from service.web.errors import documented

router = APIRouter(route_class=JsonRoute, tags=["access"])


@router.get(f"{API}/sign-ins", responses=documented())
def list_sign_ins(_: FleetAdmin, services: Services, response: Response) -> SignInList:
    """List who is signed in to the pages, newest first."""
    response.headers["Cache-Control"] = "no-store"
    sign_ins = services.access.sign_ins.going_on()
    return SignInList(sign_ins=sign_ins, count=len(sign_ins))


@router.post(f"{API}/operators/{{name}}/sign-out", responses=documented(*WRITES, 404))
def end_sign_ins(_: FleetAdmin, services: Services, name: Name) -> EndedSignIns:
    """End every sign-in of an operator, your own as well. Its tokens stay valid: revoke them to keep it out."""
    require_holder(services.access, "operator", name)
    return EndedSignIns(name=name, ended=services.access.sign_ins.end_all(name))
