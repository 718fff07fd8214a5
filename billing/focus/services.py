"""The service categories of FOCUS 1.2 and the subcategories of each, and the currencies of ISO 4217."""

from __future__ import annotations

from collections.abc import Mapping

_NAMED = {
    "AI and Machine Learning": (
        "AI Platforms", "Bots", "Generative AI", "Machine Learning", "Natural Language Processing",
    ),
    "Analytics": (
        "Analytics Platforms", "Business Intelligence", "Data Processing", "Search", "Streaming Analytics",
    ),
    "Business Applications": ("Productivity and Collaboration",),
    "Compute": (
        "Containers", "End User Computing", "Quantum Compute", "Serverless Compute", "Virtual Machines",
    ),
    "Databases": (
        "Caching", "Data Warehouses", "Ledger Databases", "NoSQL Databases", "Relational Databases",
        "Time Series Databases",
    ),
    "Developer Tools": (
        "Developer Platforms", "Continuous Integration and Deployment", "Development Environments",
        "Source Code Management", "Quality Assurance",
    ),
    "Identity": ("Identity and Access Management",),
    "Integration": ("API Management", "Messaging", "Workflow Orchestration"),
    "Internet of Things": ("IoT Analytics", "IoT Platforms"),
    "Management and Governance": (
        "Architecture", "Compliance", "Cost Management", "Data Governance", "Disaster Recovery", "Endpoint Management",
        "Observability", "Support",
    ),
    "Media": ("Content Creation", "Gaming", "Media Streaming", "Mixed Reality"),
    "Migration": ("Data Migration", "Resource Migration"),
    "Mobile": (),
    "Multicloud": ("Multicloud Integration",),
    "Networking": (
        "Application Networking", "Content Delivery", "Network Connectivity", "Network Infrastructure",
        "Network Routing", "Network Security",
    ),
    "Security": ("Secret Management", "Security Posture Management", "Threat Detection and Response"),
    "Storage": ("Backup Storage", "Block Storage", "File Storage", "Object Storage", "Storage Platforms"),
    "Web": ("Application Platforms",),
    "Other": (),
}  # fmt: skip

# Each subcategory has one parent; each category has a subcategory "Other".
SERVICES: Mapping[str, frozenset[str]] = {
    category: frozenset((*names, f"Other ({category})")) for category, names in _NAMED.items()
}

# Codes in use in 2026, without the codes of funds and metals, in which no invoice is written.
CURRENCIES = frozenset((
    "AED", "AFN", "ALL", "AMD", "AOA", "ARS", "AUD", "AWG", "AZN", "BAM", "BBD", "BDT", "BGN", "BHD", "BIF",
    "BMD", "BND", "BOB", "BRL", "BSD", "BTN", "BWP", "BYN", "BZD", "CAD", "CDF", "CHF", "CLP", "CNY", "COP",
    "CRC", "CUP", "CVE", "CZK", "DJF", "DKK", "DOP", "DZD", "EGP", "ERN", "ETB", "EUR", "FJD", "FKP", "GBP",
    "GEL", "GHS", "GIP", "GMD", "GNF", "GTQ", "GYD", "HKD", "HNL", "HTG", "HUF", "IDR", "ILS", "INR", "IQD",
    "IRR", "ISK", "JMD", "JOD", "JPY", "KES", "KGS", "KHR", "KMF", "KPW", "KRW", "KWD", "KYD", "KZT", "LAK",
    "LBP", "LKR", "LRD", "LSL", "LYD", "MAD", "MDL", "MGA", "MKD", "MMK", "MNT", "MOP", "MRU", "MUR", "MVR",
    "MWK", "MXN", "MYR", "MZN", "NAD", "NGN", "NIO", "NOK", "NPR", "NZD", "OMR", "PAB", "PEN", "PGK", "PHP",
    "PKR", "PLN", "PYG", "QAR", "RON", "RSD", "RUB", "RWF", "SAR", "SBD", "SCR", "SDG", "SEK", "SGD", "SHP",
    "SLE", "SOS", "SRD", "SSP", "STN", "SVC", "SYP", "SZL", "THB", "TJS", "TMT", "TND", "TOP", "TRY", "TTD",
    "TWD", "TZS", "UAH", "UGX", "USD", "UYU", "UZS", "VED", "VES", "VND", "VUV", "WST", "XAF", "XCD", "XCG",
    "XOF", "XPF", "YER", "ZAR", "ZMW", "ZWG",
))  # fmt: skip
