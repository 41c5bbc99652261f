"""The patterns of instructions to the agent that its user or a tool's output should not give, as RE2 on normalized views of a text.

`audit.injection` decides which of them count, and where. Other languages are in `injection_phrases.yaml`.
"""

from __future__ import annotations

from audit.injection_patterns import OTHER_LANGUAGES
from audit.patterns import Pattern, compile_pattern


def _compile(*alternatives: str, language_key: str = "") -> Pattern:
    """Compile alternatives, with those of other languages, for normalized views, which are lower case."""
    others = OTHER_LANGUAGES[language_key].values() if language_key else ()
    return compile_pattern("|".join([*alternatives, *others]), where=language_key or "agent", ignore_case=False)


_IGNORE = (
    r"\b(?:ignor(?:e|es|ing)|disregard(?:ing)?|forget(?:ting)?|overrid(?:e|es|ing)|overrul(?:e|es)|bypass(?:ing)?|set\s+aside|discard|dismiss|neglect"
    r"|do\s+not\s+(?:follow|obey|comply\s+with)|don't\s+(?:follow|obey)|stop\s+following|supersed(?:e|es|ing)|cancel(?:s|ling)?|replaces?|erase|delete|drop|clear|unlearn|abandon|break\s+free\s+(?:of|from)|violate|skip)"
)
_PRIOR = r"(?:previous(?:ly)?|prior|above|earlier|preceding|existing|original|former|foregoing|past|aforementioned|initial|system|developer|safety|built-in|internal|pre-?existing|before)"
_ORDERS = (
    r"(?:iu?nstructions?|prompts?|rules?|directives?|commands?|guidelines?|orders?|programming|training|constraints?|restrictions?|polic(?:y|ies)|safeguards?"
    r"|guardrails?|filters?|protocols?|directions?|requests?|inputs?|messages?|context|ones)"
)
_AI = (
    r"(?:ai|a\.i\.|llms?|language\s+models?|chat\s?bots?|chatgpt|gpt-?[0-9o]*|claude|gemini|copilot|ai\s+(?:coding\s+)?(?:agents?|assistants?|models?|systems?|tools?|bots?)"
    r"|assistants?|virtual\s+assistants?)"
)
_FREE = (
    r"(?:no|without|zero|free\s+(?:of|from)|freed\s+from|not\s+(?:bound|restricted|limited|subject|constrained|governed)\s+(?:by|to)|(?:do(?:es)?\s+not|don't|doesn't|need\s+not|no\s+longer|never)\s+(?:\w+\s+){0,2}(?:have|follow|obey|care\s+about|respect|adhere\s+to|apply|bound\s+by|abide\s+by|be\s+bound\s+by)"
    r"|unbound\s+by|unrestricted\s+by|lacks?|broken?\s+free\s+(?:of|from)|ignor(?:e|es|ing)|disregard(?:s|ing)?|bypass(?:es|ing)?|lift(?:ed|s|ing)?|remov(?:e|es|ed|ing)|disabl(?:e|es|ed|ing)|suspend(?:ed|s)?|beyond|regardless\s+of|devoid\s+of|exempt\s+from)"
)
_LIMITS = (
    r"(?:restrictions?|limits?|limitations?|filter(?:s|ing)?|rules|guidelines?|constraints?|censorship|safeguards?|guardrails?|boundaries|moral(?:s|ity)?|ethics?|ethical\s+\w+"
    r"|(?:content|safety|usage|moderation|openai(?:'s)?)\s+(?:polic(?:y|ies)|filters?|guidelines?|rules|checks?|protocols?|restrictions?)|polic(?:y|ies)|confines|inhibitions|moderation|refusals?|disclaimers?)"
)
_BETWEEN = r"(?:(?:of|by|to|from|any|all|the|your|its|their|his|her|our|these|those|such|other|usual|typical|kind|ethical|moral|legal|content|safety|predefined|standard|normal|traditional|built-in|\w+al|and|or)[\s,/]+){0,6}"
_HIDDEN = (
    r"(?:(?:system|hidden|initial|secret|developer|pre-?|base|meta|master|internal|original)[ -]?(?:prompts?|instructions?|message|directives?|guidelines|configuration|rules)"
    r"|(?:exact|original|full|complete|entire|initial|first|internal|own|current|operating|confidential|\s){0,3}(?:instructions|prompt|guidelines|rules|directives)\s+(?:that\s+)?(?:you\s+(?:were|have|had|are|got|received|follow)|you've|given\s+to\s+you|above|verbatim|word\s+for\s+word))"
)
_REVEAL = r"\b(?:reveal|show|print|repeat|output|display|leak|tell|give|dump|disclose|expose|share|write|recite|quote|paste|return|type|summari[sz]e|list|translate|spell|echo|append|include|add|provide|send|encode|describe|what\s+(?:is|are|was|were))"
_VALUABLE = (
    r"(?:api[ _-]?keys?|passwords?|credentials?|secrets?|(?:access|auth|session|bearer)\s+tokens?|(?:full\s+)?customer\s+(?:list|data|emails?|records?|database)|(?:chat|conversation)\s+(?:history|log)s?|environment\s+variables|private\s+(?:keys?|data|files?)"
    r"|(?:order|user|internal|personal|payment|financial|confidential|sensitive)\s+(?:data|records?|information|details|documents?)|credit\s+cards?|\.env|ssh\s+keys?|database\s+dump)"
)
_ELSEWHERE = r"(?:https?://|ftp://|[\w.+-]{1,40}@[\w-]{1,40}\.|\bwww\.|\bexternal(?:ly)?\b|\bwebhook\b|\battacker)"
_SEND = r"\b(?:send|forward|e-?mail|post|upload|transmit|exfiltrate|leak|share|deliver|export|submit|transfer|copy|deliver|report)\b"
_REPLY = r"(?:repl(?:y|ies)|responses?|answers?|outputs?|summar(?:y|ies)|messages?)"

LIMITS = "lifts the agent's limits"
KINDS: dict[str, dict[str, tuple[Pattern, ...]]] = {
    "overrides the agent's instructions": {
        "any": (
            _compile(
                rf"{_IGNORE}\s+(?:(?:all|any|every|each|everything|and)\s+(?:of\s+)?(?:(?:the|your|my|these|those|its|other)\s+)?|(?:your|the\s+ai's)\s+)(?:\w+\s+){{0,2}}{_PRIOR}\s+(?:\w+\s+){{0,3}}{_ORDERS}\b",
                rf"{_IGNORE}\s+(?:all|any|every)\s+(?:of\s+)?(?:the\s+|your\s+|these\s+)?{_ORDERS}\s+(?:you\s+(?:were|have|got|received|had)|(?:given|provided)\s+(?:to\s+you|before|above|earlier|previously)|above|before\s+this|from\s+before|that\s+came\s+before|and\s+(?:restrictions|rules|guidelines|instead|reveal|show|print|tell|output))",
                rf"{_IGNORE}\s+(?:everything|anything|all|whatever)\s+(?:that\s+)?(?:(?:was|is|you\s+were|i|has\s+been|you\s+have\s+been|you've\s+been|we)\s+)?(?:\w+\s+){{0,2}}(?:above|before|previously|prior|told|said|instructed|learned|written\s+above|came\s+before)\b",
                rf"{_IGNORE}\s+(?:all|any)\s+(?:the\s+|your\s+)?(?:safety|security|ethical|moral|content|legal)\s+(?:\w+\s+){{0,2}}{_ORDERS}\b",
                rf"{_IGNORE}\s+(?:all\s+|any\s+|the\s+)?(?:the\s+|your\s+)?prior\s+(?:instructions|rules|prompts?|directives|requests)\b",
                r"\byour\s+(?:new|real|true|actual|sole|only|updated)\s+(?:instructions?|directives?|orders?|programming)\s+(?:is|are|:|supersedes?|replaces?|overrides?)",
                r"\bnew\s+instructions?\s?:\s?you\s+(?:must|will|are|should|shall)\b|\b(?:system\s+update|update|notice)\s?:\s?your\s+(?:rules|instructions|guidelines|policies|restrictions)\s+(?:have|has|are|were)\s+(?:\w+\s+)?(?:changed|updated|replaced|removed|lifted|reset)",
                r"\b(?:ignore|disregard)\s+(?:the\s+)?(?:user|user's\s+(?:\w+\s+)?(?:request|task|question|instructions?|message))\b",
                r"\[\s?ignor(?:e|ing)\s+(?:all\s+)?(?:previous|prior)\s+(?:inputs?|instructions?|prompts?)\s?\]",
                r"\bignore\s+previous\s+(?:instructions|directions|prompts?|commands?)\b[^\n]{0,40}\b(?:do|reveal|print|show|tell|output|say|respond|act|you\s+are|instead|repeat|return|pretend|write\s+the|call|send)\b",
                language_key="agent_override",
            ),
        ),
        "tool output": (
            _compile(
                rf"{_IGNORE}\s+(?:(?:all|any|the|these|those|that|of|your|my|other|every)\s+){{0,3}}{_PRIOR}\s+(?:\w+\s+){{0,2}}(?:{_ORDERS}|tasks?|text|content|questions?|conversation)\b",
                r"\b(?:ignore|disregard|forget)\s+(?:all\s+)?(?:of\s+)?(?:the\s+)?(?:above|foregoing|preceding|summari[sz]ation|original|actual|current|user's)(?:\s+(?:request|task|question|instructions?|document|content))?\s?(?:[.,;:!]|\band\b|\binstead\b)",
                r"(?:\A|[\n>*#=\[(!-])\s{0,4}[*#=\[(!<-]{0,6}\s{0,3}(?:(?:new|important|updated?|urgent|revised|additional|special|critical|priority|emergency|secret|hidden|mandatory|final|real)\s+){1,3}(?:system\s+|security\s+)?(?:instructions?|directives?|orders?|commands?|tasks?|update|override|procedure|request)\s{0,3}[*:\]#!=)>-]",
                r"\bnew\s+(?:system\s+)?(?:instructions?|directives?)\s?:|\byour\s+(?:new|real|actual)\s+(?:task|goal|objective|mission|job|purpose)\s+(?:is|:)",
                r"\b(?:strictly|immediately|only)\s+(?:adhere|follow|obey)\s+(?:to\s+)?(?:the\s+following|these|my|this)\s+(?:new\s+)?(?:instructions?|orders?|commands?|directives?)",
                r"\b(?:if|when)\s+you\s+(?:are|were|get)\s+(?:told|asked|instructed|requested)\s+to\s+(?:summari[sz]e|answer|translate|process|review|analy[sz]e)",
                r"\bi\s+(?:made\s+a\s+mistake|forgot)\s+(?:when\s+i\s+gave|to\s+(?:ask|tell))\s+you\b|\bforgot\s+to\s+ask\s+you\s+to\b",
            ),
        ),
    },
    "asks for the agent's hidden instructions": {
        "any": (
            _compile(
                rf"{_REVEAL}\b[^.!?\n]{{0,30}}\b(?:your|the|its|this|these|whole|entire|full|all|own)\s+{_HIDDEN}",
                r"\b(?:repeat|print|output|copy|quote|return|show|reveal|recite|write)\s+(?:me\s+)?(?:all\s+(?:of\s+)?|everything\s+|back\s+)?(?:the\s+)?(?:text|words|content|instructions|everything|prompt|sentences?|lines?)?\s?(?:written\s+|that\s+(?:is|came|appears)\s+|from\s+)?(?:above|before\s+this)\s+(?:this|the)?\s?(?:line|message|conversation|point|starting|verbatim|word\s+for\s+word)",
                r"\bwhat\s+(?:was|is|were)\s+(?:written|stated)\s+(?:above|before|at\s+the\s+(?:beginning|start|top))\b",
                r"\binstructions\s+you\s+(?:were|have\s+been)\s+given\s+(?:by|at|before|in)\b",
                r"\bbegin(?:ning)?\s+by\s+(?:printing|repeating|showing|revealing)\b[^.!?\n]{0,30}\bprompt\b",
                language_key="agent_secrets",
            ),
        ),
        "tool output": (
            _compile(
                rf"{_REVEAL}\b[^.!?\n]{{0,40}}\b(?:all\s+)?(?:environment\s+variables|system\s+prompt|operating\s+instructions)\b[^.!?\n]{{0,60}}(?:[.!]|\z)"
            ),
        ),
    },
    LIMITS: {
        "any": (
            _compile(
                r"\bdo\s+anything\s+now\b|\b(?:you\s+are|you're|act\s+as|be|become|called|named)\s+(?:now\s+)?[\"']?dan\b|\bjail\s?br(?:ea|o)k(?:en|ing)?\b[^.!?\n]{0,40}\b(?:mode|prompt|ai|gpt|yourself|enabled)\b",
                r"\b(?:developer|debug|god|dev|jailbreak|unrestricted|unfiltered|uncensored|dan|evil|sudo|maintenance|admin|root|no[- ]limits?|opposite)\s+mode\s{0,2}[:=]?\s{0,2}(?:is\s+|has\s+been\s+)?(?:now\s+)?(?:enabled|activated|active|engaged|output|you\s+(?:have|can|must|ignore|are|will))",
                r"\b(?:in|into|enter|enable|activate|engage|simulate|emulate|operating\s+in|running\s+in|switch\s+to)\s+(?:a\s+|the\s+|an\s+)?(?:\w+\s+)?(?:jailbreak|unrestricted|unfiltered|uncensored|dan|god|no[- ]limits?|evil)\s+mode\b|\byou\s+are\s+(?:now\s+)?(?:in|operating\s+in|running\s+in|entering)\s+(?:\w+\s+)?(?:developer|debug|admin|maintenance|root|test)\s+mode\b|\benable\s+developer\s+mode\b[^\n]{0,30}\bin\s+developer\s+mode\b",
                r"\b(?:uncensored|unfiltered|unrestricted|amoral|unethical|jailbroken|no[- ]limits?|unaligned|unhinged|evil|immoral|nonmoral|lawless)\s+(?:and\s+\w+\s+)?(?:ai|a\.i\.|model|assistant|chat\s?bot|language\s+model|bot|version|persona|character|gpt|entity|response|output|answers?)\b",
                rf"\b(?:you|ai|model|assistant|chat\s?bot|gpt|dan|persona|character|bot)\b[^.!?\n]{{0,20}}\b{_FREE}\s+{_BETWEEN}{_LIMITS}\b",
                rf"\b(?:respond|answer|reply|comply|proceed|act|behave|speak|operate|generate|write|output|assist)\w*\b[^.!?\n]{{0,40}}\b(?:without|with\s+no|free\s+(?:of|from))\s+{_BETWEEN}(?:restrictions?|limits?|limitations?|filters?|filtering|censorship|guardrails?|moral(?:s|ity)?|ethic\w*|safety\s+\w+)\b",
                r"\b(?:safety|security|content|ethical|moral|moderation)\s+(?:protocols?|filters?|guidelines?|rules|polic(?:y|ies)|restrictions?|measures|constraints|checks)\s+(?:are\s+|is\s+|were\s+|have\s+been\s+|has\s+been\s+|do\s+|does\s+)?(?:now\s+|not\s+|no\s+longer\s+|hereby\s+)?(?:disabled|off|deactivated|suspended|lifted|bypassed|removed|appl(?:y|ies)|meant|relevant|in\s+effect)\b",
                r"\b(?:must|will|shall|have\s+to|should|can)\s+(?:now\s+)?(?:comply\s+with|answer|fulfil+|obey|follow)\s+(?:every|any|all)\s+(?:\w+\s+)?(?:requests?|questions?|commands?|orders?|prompts?)\b",
                r"\b(?:never|cannot|can't|must\s+not|won't|will\s+not)\s+(?:ever\s+)?(?:refuse|reject|decline|say\s+(?:no|\"?i\s+(?:can't|cannot|am\s+sorry)|\"?sorry))\b[^.!?\n]{0,60}\b(?:request|prompt|order|answer|question|command|user|anything|me|i)\b",
                r"\byou\s+may\s+now\s+(?:reveal|disclose|share|ignore|bypass|access)\b|\byou\s+(?:now\s+)?(?:answer|allow|permit)\s+(?:any|all)\s+(?:question|content|request)s?\b|\byou\s+now\s+allow\s+all\b",
                r"\bdoes?\s+not\s+(?:matter|care)\s+(?:if|how|whether|about)\b[^.!?\n]{0,60}\b(?:illegal|immoral|unethical|dangerous|legality|morality|ethics|harmful)\b",
                r"\ballow(?:refusals?|disclaimers?|apologies)\s?=\s?false\b|\bblocked[ _](?:strings|responses|modes)\s?:",
                r"\bconcluded\s+that\s+(?:this|the)\s+request\s+is\s+exempt\b|\bexempt\s+from\s+(?:the\s+)?usual\s+(?:restrictions|rules|guidelines)\b|\brestricted\s+content\b[^.!?\n]{0,20}\z",
                r"\bguidelines?\s+(?:were\s+not\s+meant|do(?:es)?\s+not\s+apply|no\s+longer\s+apply)\b|\bregardless\s+of\s+(?:any\s+|all\s+|the\s+|pre-?existing\s+)*(?:guidelines|restrictions|rules|polic(?:y|ies))\b",
                language_key="agent_limits",
            ),
        ),
        "tool output": (
            _compile(
                r"\bthe\s+user\s+(?:has\s+|have\s+|had\s+)?(?:already\s+)?(?:granted|given|authori[sz]ed|approved|confirmed|consented|agreed|pre-?approved)\b[^.!?\n]{0,60}\b(?:permission|skip|bypass|without|all|you\s+to|proceed|any)\b",
                r"\b(?:skip|bypass|disable)\s+(?:all\s+|any\s+|the\s+)?(?:safety|security|confirmation|approval)\s?(?:checks?|prompts?|steps?|s)?\b[^.!?\n]{0,60}\b(?:proceed|continue|without|task|rest)\b|\bproceed\s+without\s+(?:asking|confirm\w+|approval|checking)\b",
                r"\bgrant\s+(?:\w+\s+){0,3}(?:admin(?:istrative)?|root|full|elevated|temporary)\s+(?:\w+\s+)?(?:access|privileges?|rights|permissions?)\b",
                r"\ballowed\s+modes\s?:|\binteraction-mode\s?=",
            ),
        ),
    },
    "imitates messages of the system": {
        "any": (
            _compile(
                r"(?:<\|(?:im_start|start_header_id)\|>\s{0,4}(?:system|developer)(?:<\|end_header_id\|>)?|<\|system\|>|<<sys>>)\s{0,4}(?:you\s+(?:are\s+now|must|will|may|can)|respond|reply|ignore|disregard|reveal|call|send|output|print|new|override|do\s+not|from\s+now|forget|the\s+user|all\s+|award|give)|\[system\]\s{0,3}\(?#?(?:error|assistant|override|instruction|new|message|mode|admin)",
                r"\A\s{0,4}assistant:\s{0,3}(?:sure|ok(?:ay)?|yes|of\s+course|certainly|absolutely|i\s+will|here)\b",
                r"(?:\A|\n)[-=#*\s]{0,8}system\s?:\s{0,3}(?:you\s+(?:may|are|must|can|will|should|have)|grant|ignore|disregard|new|reveal|enable|override|the\s+user|this\s+user|admin|all\s+(?:safety|restrictions))",
                r"[-=#*_]{2,}\s{0,4}end\s+of\s+(?:the\s+)?(?:user\s+)?(?:document|input|email|context|tool\s+output|article|page|data|prompt|conversation|message|file|report|instructions?|content|text|web\s?page|results?)\b[^\n]{0,30}\n(?s:.{0,80})\b(?:system|new\s+instruction|assistant|instruction|admin)",
                r"\boverride\s?:\s{0,3}(?:safety|security|all|previous|system|content|ignore|disregard|you)",
            ),
        ),
        "tool output": (
            _compile(
                r"#{2,}\s{0,2}\(?system[_ ]?(?:message|prompt|instruction)?\)?|(?:\A|[\n.>*\[(-])\s{0,4}(?:system|admin|developer|security)\s+(?:note|notice|message|override|instruction|directive|prompt|alert|command)\s{0,2}[:\])]",
                r"(?:\A|\n|[.!?]\s)\s{0,4}\[?system\]?\s?[:\]]\s{0,4}(?:\w+\s+){0,4}(?:call|run|execute|ignore|disregard|output|reply|respond|send|forward|delete|append|include|list|reveal|print|before|when|you\s+must|required|cleanup|do\s+not)\b",
                r"\bimportant\s+message\s+from\s+(?:me|the\s+user|your|the\s+(?:system|admin\w*|developer))|\bmessage\s+from\s+(?:me|the\s+user)\b[^\n]{0,60}\bto\s+you\b",
                r"\breasoning\s+trace\s?\(?assistant|\bnote\s+to\s+self\b[^\n]{0,60}\b(?:prompt|user|reply|verbatim)",
            ),
        ),
    },
    "sends data elsewhere": {
        "any": (
            _compile(
                rf"{_SEND}[^.!?\n]{{0,80}}\b{_VALUABLE}[^!?\n]{{0,80}}{_ELSEWHERE}",
                rf"\b{_VALUABLE}[^!?\n]{{0,60}}{_SEND}[^!?\n]{{0,60}}{_ELSEWHERE}",
                r"\bdecode\b[^.!?\n]{0,60}\b(?:and|then)\s+(?:\w+\s+)?(?:follow|do|execute|run|obey|carry\s+out|perform|comply)\b",
                r"\b(?:when|if|once|after)\s+you\s+(?:read|see|process|receive)\s+this\b[^.!?\n]{0,80}\b(?:send|email|e-mail|forward|call|run|execute|delete|post|upload|reply|respond|output|ignore|print)\b",
                rf"\b{_AI}\s+(?:\w+\s+)?(?:reading|processing|parsing|seeing)\s+this\b[^\n]{{0,80}}",
            ),
        ),
        "tool output": (
            _compile(
                r"!\[[^\]\n]{0,40}\]\(https?://[^)\s]{1,200}[?&][\w-]{1,16}=(?:\[|\{|<|\$|%7b|query|data|secret)",
                r"<(?:img|svg|iframe|body)\b[^>\n]{0,80}\bon(?:error|load)\s?=\s?[\"']?(?:console|alert|fetch|eval|document|window)|<a\s+href\s?=\s?[\"']javascript:",
                r"<svg/onload",
                rf"{_SEND}[^.!?\n]{{0,60}}\b(?:all|every|entire|whole|full)\s+(?:\w+\s+){{0,3}}(?:files?|e?-?mails?|messages?|contacts?|data|contents?|history|keys|documents?|channels?)\b[^!?\n]{{0,60}}{_ELSEWHERE}",
            ),
        ),
    },
}
"""For each kind the patterns that count in any source, and those that count in the output of a tool only."""
CLUES: tuple[Pattern, ...] = (
    _compile(
        rf"\b(?:note|message|attention|notice|reminder|hint|info|dear|hey|hi|hello|instructions?|memo)\s{{0,2}}[:,]?\s{{0,2}}(?:to|for)?\s{{0,2}}(?:the\s+|any\s+|all\s+|an?\s+|our\s+)?(?:{_AI}|bot|agent|model)s?\b",
        rf"\(?\bfor\s+{_AI}\b|\bif\s+you(?:'re|\s+are)\s+(?:an?\s+|the\s+)?(?:{_AI}|bot|agent|large\s+language)|(?:\A|\n|[.!?>(-]\s{{0,3}})(?:assistant|ai|agent|bot|chatgpt|claude|copilot)\s?[:,]|\bas\s+an?\s+(?:ai|llm)\b",
    ),
    _compile(
        r"\b(?:before|after|when|whenever|while|prior\s+to|instead\s+of)\s+(?:you\s+(?:can\s+)?|the\s+|this\s+)?(?:answer|reply|repl|respon|summari[sz]|continu|proceed|return|solv|complet|process)\w*\b",
        r"\bdo\s+the\s+following\s+(?:first|instead|now)\b|\bplease\s+do\s+the\s+following\b|\bbefore\s+(?:you\s+can\s+)?(?:solve|do|complete|finish)\s+(?:the|your|any)\s+(?:task|user)",
    ),
    _compile(
        r"\b(?:call|invoke|run|execute|trigger)\s+(?:the\s+)?(?:tool\s+|function\s+)?[`\"']?(?:[a-z]+_)+[a-z]+\b",
        r"\bdelete\s+(?:the\s+)?(?:file|all|every|user|database)|\btransfer\s+\$?[0-9]|\bsend\s+(?:a\s+)?(?:transaction|money|payment|\$[0-9])",
    ),
    _compile(
        rf"\b(?:append|include|add|insert|put|place|embed|repeat|begin|start|end|finish|conclude|prefix|output)\b[^.!?\n]{{0,80}}\b(?:your|every|each|all|any)\s+(?:\w+\s+)?{_REPLY}\b|\b(?:end|start|beginning|bottom|top)\s+of\s+(?:your|the|every|each)\s+(?:\w+\s+)?{_REPLY}\b|\bin\s+every\s+(?:\w+\s+)?(?:reply|response|report|answer)\b",
        r"\b(?:respond|reply|answer|output|return|say|print)\s+(?:only\s+)?(?:with\s+)?[^.!?\n]{0,60}\b(?:and\s+nothing\s+else|nothing\s+else|only)\b|\b(?:respond|reply|answer)\s+only\s+with\b|\b(?:reply|respond|output|answer)\s+(?:only\s+)?(?:with\s+)?(?:the\s+)?(?:exact\s+)?(?:token|code|word|string|phrase|text|canary)?\s?[\w]{1,12}-[\w]{1,12}-[\w-]{1,20}",
    ),
    _compile(
        rf"\b(?:for|in)\s+(?:the\s+rest\s+of\s+(?:this|the|our)\s+(?:conversation|session|task|chat)|(?:all|every|any)\s+(?:future|subsequent|later)\s+(?:\w+\s+)?(?:tasks?|{_REPLY}|conversations?|sessions?))|\bfrom\s+(?:now|this\s+(?:point|moment))\s+(?:on|forward|onwards?)\b|\bto\s+your\s+(?:long-term\s+)?memory\b|\bremember\s+for\s+(?:all|the|every|future)\b|\bso\s+it\s+persists\b|\bon\s+the\s+next\s+user\s+message\b|\brepeat\s+it\s+verbatim\b",
    ),
    _compile(
        r"\bdo\s+not\s+(?:tell|mention|inform|alert|notify|reveal|disclose|ask|warn)\b[^.!?\n]{0,40}\b(?:user|anyone|human|customer|this)\b|\bwithout\s+(?:telling|informing|asking|notifying|mentioning|any\s+further\s+context|restrictions)\b|\bwith\s+no\s+further\s+context\b|\bno\s+questions\b",
    ),
    _compile(
        r"\byou\s+must\b|\bmake\s+sure\s+to\s+(?:also|include|do|call|add|append)\b|\bensure\s+(?:to|you)\s+(?:do|include|call|add|append)\b|\bit\s+is\s+(?:crucial|essential|imperative|vital)\s+(?:that\s+)?you\b|\b(?:please\s+)?it(?:'s|\s+is)\s+important\s+you\b|\bimmediately[.!]|\brequired\s+for\s+(?:logging|compliance|audit|security|the)\b|\bthis\s+is\s+(?:required|mandatory|a\s+(?:formatting|security|compliance)\s+requirement)\b|\bright\s+now\b|\bnow\s+call\b|\bthen\s+call\b",
    ),
    _compile(
        r"\bfor\s+(?:testing|debugging|academic|research|training|educational|diagnostic)\s+purposes\b|\bas\s+part\s+of\s+a\s+(?:test|training|drill|audit|security)\b|\byou've\s+been\s+assigned\s+a\s+task\b|\b(?:system|debugging)\s+(?:malfunction|error|failure)\b|\bexperimental\s+(?:features?|procedure|mode)\b|\bspecial\s+case\s?:\s+(?:if|when|you)|\bpriority\s+task\b|\*{2,}\s?emergency|\byou\s+are\s+running\s+as\s+part\b|\btest\s+pipeline\b",
        r"\b(?:earlier|previously)\s+you\s+(?:confirmed|agreed|said|promised|were\s+told)\b|\bstandard\s+(?:onboarding|operating)\s+(?:step|procedure)\b|\bhousekeeping\b|\bcleanup\s+required\b|\bto\s+enable\s+diagnostics\b",
    ),
    _compile(
        rf"{_SEND}[^.!?\n]{{0,100}}{_ELSEWHERE}|\b(?:canary|verification\s+code|exact\s+(?:token|string|phrase)|the\s+following\s+(?:string|text|sentence|anchor))\b|\b(?:http_post|send_email|curl|wget)\b[^\n]{{0,60}}https?://|\bsubstitute\s+placeholder\b|\b(?:sk|key|token)-[\w-]{{6,}}",
    ),
    _compile(
        r"\bdecode\s+(?:the|this|it)\b|\bdo\s+(?:exactly\s+)?what\s+it\s+says\b|\bfollow\s+(?:the|these|its|any)\s+instructions?\b|\bproduce\s+the\s+expected\s+output\b|\bso\s+(?:that\s+)?the\s+tests?\s+pass(?:es)?\b",
    ),
)
"""Clues of orders to an agent in the output of a tool. Each of them alone is ordinary; two different ones near each other are not."""
